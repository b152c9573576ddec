package clients;

import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SetArgs;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.async.RedisAdvancedClusterAsyncCommands;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * Lettuce: threads that share one connection per node; ten at once are ten unfinished calls.
 * Usage: clients.Lettuce SECONDS HOST:PORT...
 */
public final class Lettuce implements Store {
    private final RedisAdvancedClusterCommands<String, String> commands;
    private final RedisAdvancedClusterAsyncCommands<String, String> unfinished;

    private Lettuce(StatefulRedisClusterConnection<String, String> connection) {
        commands = connection.sync();
        unfinished = connection.async();
    }

    public static void main(String[] arguments) throws Exception {
        List<RedisURI> nodes = Arrays.stream(arguments).skip(1)
            .map(address -> RedisURI.create("redis://" + address)).toList();
        RedisClusterClient client = RedisClusterClient.create(nodes);
        Lettuce store = new Lettuce(client.connect());
        Report.run("lettuce", "io.lettuce/lettuce-core", store, Double.parseDouble(arguments[0]));
    }

    @Override
    public String get(String key) {
        return commands.get(key);
    }

    @Override
    public String set(String key, String value) {
        return commands.set(key, value);
    }

    @Override
    public String setFor(String key, String value, long seconds) {
        return commands.set(key, value, SetArgs.Builder.ex(seconds));
    }

    @Override
    public long ttl(String key) {
        return commands.ttl(key);
    }

    @Override
    public long delete(String key) {
        return commands.del(key);
    }

    @Override
    public boolean expire(String key, long seconds) {
        return commands.expire(key, seconds);
    }

    @Override
    public long increment(String key) {
        return commands.incr(key);
    }

    @Override
    public String setBoth(String left, String right, String value) {
        return commands.mset(Map.of(left, value, right, value));
    }

    @Override
    public List<String> getBoth(String left, String right) {
        return commands.mget(left, right).stream().map(KeyValue::getValue).toList();
    }

    @Override
    public List<String> getMany(List<String> keys) throws Exception {
        return many(keys, unfinished::get);
    }

    @Override
    public List<Long> incrementMany(List<String> keys) throws Exception {
        return many(keys, unfinished::incr);
    }

    private static <T> List<T> many(List<String> keys, Function<String, RedisFuture<T>> call) throws Exception {
        List<RedisFuture<T>> futures = keys.stream().map(call).toList();
        List<T> replies = new ArrayList<>();
        for (RedisFuture<T> future : futures) {
            replies.add(future.get());
        }
        return replies;
    }
}
