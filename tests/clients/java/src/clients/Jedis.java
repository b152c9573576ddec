package clients;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.stream.Collectors;
import redis.clients.jedis.ClusterPipeline;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.params.SetParams;

/**
 * Jedis: threads that share one client, and pipelines. Its pipelines do not follow `MOVED`: they show
 * it to the application, which has to ask once more. Usage: clients.Jedis SECONDS HOST:PORT...
 */
public final class Jedis implements Store {
    private final RedisClusterClient client;

    private Jedis(RedisClusterClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        Set<HostAndPort> nodes = Arrays.stream(arguments).skip(1)
            .map(HostAndPort::from).collect(Collectors.toSet());
        RedisClusterClient client = RedisClusterClient.builder().nodes(nodes).build();
        Report.run("jedis", "redis.clients/jedis", new Jedis(client), Double.parseDouble(arguments[0]));
    }

    @Override
    public String get(String key) {
        return client.get(key);
    }

    @Override
    public String set(String key, String value) {
        return client.set(key, value);
    }

    @Override
    public String setFor(String key, String value, long seconds) {
        return client.set(key, value, SetParams.setParams().ex(seconds));
    }

    @Override
    public long ttl(String key) {
        return client.ttl(key);
    }

    @Override
    public long delete(String key) {
        return client.del(key);
    }

    @Override
    public boolean expire(String key, long seconds) {
        return client.expire(key, seconds) == 1;
    }

    @Override
    public long increment(String key) {
        return client.incr(key);
    }

    @Override
    public String setBoth(String left, String right, String value) {
        return client.mset(left, value, right, value);
    }

    @Override
    public List<String> getBoth(String left, String right) {
        return client.mget(left, right);
    }

    @Override
    public List<String> getMany(List<String> keys) {
        return many(keys, ClusterPipeline::get, client::get);
    }

    @Override
    public List<Long> incrementMany(List<String> keys) {
        return many(keys, ClusterPipeline::incr, client::incr);
    }

    private <T> List<T> many(
        List<String> keys, BiFunction<ClusterPipeline, String, Response<T>> call, Function<String, T> again) {
        List<Response<T>> replies;
        try (ClusterPipeline pipeline = client.pipelined()) {
            replies = keys.stream().map(key -> call.apply(pipeline, key)).toList();
            pipeline.sync();
        }
        List<T> found = new ArrayList<>();
        for (int at = 0; at < replies.size(); at++) {
            try {
                found.add(replies.get(at).get());
            } catch (JedisMovedDataException moved) {
                found.add(again.apply(keys.get(at)));
            }
        }
        return found;
    }
}
