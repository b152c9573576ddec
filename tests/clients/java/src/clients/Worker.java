package clients;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.IntStream;

/** One user of the store, who knows what its names hold: nobody else writes them. */
final class Worker implements Runnable {
    private static final int NAMES = 200;
    private static final int AT_ONCE = 10;
    private static final long LIFETIME = 1000;

    private final int number;
    private final Store store;
    private final Report report;
    private final long end;
    private final List<Long> latencies = new ArrayList<>();
    private Map<String, String> texts;
    private Map<String, Long> counters;
    private int generation;
    private long operations;

    Worker(int number, Store store, Report report, long end) {
        this.number = number;
        this.store = store;
        this.report = report;
        this.end = end;
        forget();
    }

    /** Some step of a worker. */
    private interface Step {
        void run() throws Exception;
    }

    private void forget() {
        generation += 1;
        texts = new HashMap<>();
        counters = new HashMap<>();
    }

    @Override
    public void run() {
        List<Step> steps = List.of(
            this::get, this::get, this::set, this::setFor, this::delete, this::expire, this::increment,
            this::pair, this::getMany, this::incrementMany, this::incrementMany);
        while (System.nanoTime() < end) {
            careful(steps.get(below(steps.size())));
        }
        careful(this::readBack);
        report.add(operations, latencies);
    }

    private void careful(Step step) {
        try {
            step.run();
        } catch (Exception error) {
            report.error(error.toString());
            forget();
        }
    }

    private <T> T timed(Callable<T> call) throws Exception {
        long began = System.nanoTime();
        T reply = call.call();
        if (report.isWarm(began)) {
            latencies.add(System.nanoTime() - began);
        }
        return reply;
    }

    /** Notes the answer to so many commands, and whether it is what it must be. */
    private void must(Object found, Object expected, String what, int commands) {
        operations += commands;
        if (!Objects.equals(found, expected)) {
            report.wrong("%s: %.200s instead of %.200s".formatted(what, found, expected));
        }
    }

    private void get() throws Exception {
        String text = some("text");
        must(timed(() -> store.get(text)), texts.get(text), "GET", 1);
    }

    private void set() throws Exception {
        String text = some("text");
        String value = value();
        must(timed(() -> store.set(text, value)), "OK", "SET", 1);
        texts.put(text, value);
    }

    private void setFor() throws Exception {
        String text = some("text");
        String value = value();
        must(timed(() -> store.setFor(text, value, LIFETIME)), "OK", "SET EX", 1);
        texts.put(text, value);
        long rest = timed(() -> store.ttl(text));
        must(LIFETIME - 10 <= rest && rest <= LIFETIME, true, "TTL " + rest, 1);
    }

    private void delete() throws Exception {
        String text = some("text");
        must(timed(() -> store.delete(text)) == 1, texts.remove(text) != null, "DEL", 1);
    }

    private void expire() throws Exception {
        String text = some("text");
        must(timed(() -> store.expire(text, LIFETIME)), texts.containsKey(text), "EXPIRE", 1);
    }

    private void increment() throws Exception {
        String counter = some("counter");
        must(timed(() -> store.increment(counter)), counters.merge(counter, 1L, Long::sum), "INCR", 1);
    }

    private void pair() throws Exception {
        String name = some("name");
        String left = "{" + name + "}:left";
        String right = "{" + name + "}:right";
        String value = value();
        must(timed(() -> store.setBoth(left, right, value)), "OK", "MSET", 2);
        must(timed(() -> store.getBoth(left, right)), List.of(value, value), "MGET", 2);
    }

    private void getMany() throws Exception {
        List<String> keys = ten("text");
        // A list that may hold null.
        List<String> expected = new ArrayList<>();
        keys.forEach(key -> expected.add(texts.get(key)));
        must(timed(() -> store.getMany(keys)), expected, "ten GET", AT_ONCE);
    }

    private void incrementMany() throws Exception {
        List<String> keys = ten("counter");
        List<Long> expected = keys.stream().map(key -> counters.merge(key, 1L, Long::sum)).toList();
        must(timed(() -> store.incrementMany(keys)), expected, "ten INCR", AT_ONCE);
    }

    private void readBack() throws Exception {
        counters.forEach((counter, value) -> texts.put(counter, value.toString()));
        for (var entry : texts.entrySet()) {
            must(timed(() -> store.get(entry.getKey())), entry.getValue(), "GET at the end", 1);
        }
    }

    private String some(String kind) {
        return key(kind, below(NAMES));
    }

    private List<String> ten(String kind) {
        int first = below(NAMES);
        return IntStream.range(first, first + AT_ONCE).mapToObj(number -> key(kind, number)).toList();
    }

    private String key(String kind, int name) {
        long program = ProcessHandle.current().pid();
        return "%s:%d.%d.%d.%d".formatted(kind, program, number, generation, name % NAMES);
    }

    private String value() {
        return operations + ":" + "x".repeat(below(890));
    }

    private static int below(int limit) {
        return ThreadLocalRandom.current().nextInt(limit);
    }
}
