package clients;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/** Lets workers work and tells what all of them have seen; see ../../../README.md. */
final class Report {
    private static final int WORKERS = 8;
    private static final long WARM_UP = TimeUnit.SECONDS.toNanos(1);
    private static final int COMPLAINTS_MAX = 6;

    private final long start = System.nanoTime();
    private final List<Long> latencies = new ArrayList<>();
    private final Map<String, Integer> errors = new TreeMap<>();
    private final Map<String, Integer> wrong = new TreeMap<>();
    private long operations;

    /** Lets all workers work for so many seconds, prints the line, and ends the program. */
    static void run(String client, String artifact, Store store, double seconds) throws Exception {
        Report report = new Report();
        long end = report.start + (long) (seconds * 1e9);
        List<Thread> threads = IntStream.range(0, WORKERS)
            .mapToObj(number -> new Thread(new Worker(number, store, report, end))).toList();
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        report.end(client, version(artifact));
    }

    synchronized void add(long operations, List<Long> latencies) {
        this.operations += operations;
        this.latencies.addAll(latencies);
    }

    synchronized void error(String what) {
        errors.merge(what, 1, Integer::sum);
    }

    synchronized void wrong(String what) {
        wrong.merge(what, 1, Integer::sum);
    }

    boolean isWarm(long began) {
        return began - start > WARM_UP;
    }

    private synchronized void end(String client, String version) {
        int errorsSeen = complain(client, errors);
        int wrongSeen = complain(client, wrong);
        Collections.sort(latencies);
        System.out.printf(
            "{\"client\": \"%s\", \"version\": \"%s\", \"operations\": %d, \"errors\": %d, \"wrong\": %d, "
                + "\"p50_us\": %d, \"p99_us\": %d, \"longest_ms\": %.1f}%n",
            client, version, operations, errorsSeen, wrongSeen,
            nanosAt(0.5) / 1000, nanosAt(0.99) / 1000, nanosAt(1) / 1e6);
        System.out.flush();
        // A library's own threads must not keep the program from ending.
        Runtime.getRuntime().halt(errorsSeen + wrongSeen > 0 ? 1 : 0);
    }

    /** Tells some of what was seen, and how much there was in all. */
    private static int complain(String client, Map<String, Integer> seen) {
        seen.entrySet().stream().limit(COMPLAINTS_MAX).forEach(
            entry -> System.err.printf("%s: %d x %s%n", client, entry.getValue(), entry.getKey()));
        return seen.values().stream().mapToInt(Integer::intValue).sum();
    }

    private long nanosAt(double share) {
        return latencies.isEmpty() ? 0 : latencies.get((int) ((latencies.size() - 1) * share));
    }

    /** What the library's archive says of itself. */
    private static String version(String artifact) throws IOException {
        Properties properties = new Properties();
        try (var file = Report.class.getResourceAsStream("/META-INF/maven/" + artifact + "/pom.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }
}
