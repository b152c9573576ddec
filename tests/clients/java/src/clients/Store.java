package clients;

import java.util.List;

/** What the workload asks of a library. A text that is not there is null. */
interface Store {
    String get(String key) throws Exception;

    String set(String key, String value) throws Exception;

    String setFor(String key, String value, long seconds) throws Exception;

    long ttl(String key) throws Exception;

    long delete(String key) throws Exception;

    boolean expire(String key, long seconds) throws Exception;

    long increment(String key) throws Exception;

    String setBoth(String left, String right, String value) throws Exception;

    List<String> getBoth(String left, String right) throws Exception;

    List<String> getMany(List<String> keys) throws Exception;

    List<Long> incrementMany(List<String> keys) throws Exception;
}
