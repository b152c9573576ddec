// Goroutines that share one go-redis client, and pipelines, on a cluster whose slots move; see
// ../README.md.
//
// Usage: go-redis SECONDS HOST:PORT...
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const library = "github.com/redis/go-redis/v9"

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: os.Args[2:]})
	report := newReport()
	end := report.start.Add(time.Duration(seconds * float64(time.Second)))
	var all sync.WaitGroup
	for number := range workers {
		worker := newWorker(number, goRedis{client, context.Background()}, report)
		all.Go(func() { worker.work(end) })
	}
	all.Wait()
	report.end()
}

// end prints the line, and ends the program.
func (r *report) end() {
	errorsSeen, wrongSeen := complain(r.errors), complain(r.wrong)
	slices.Sort(r.latencies)
	at := func(share float64) time.Duration {
		if len(r.latencies) == 0 {
			return 0
		}
		return r.latencies[int(float64(len(r.latencies)-1)*share)]
	}
	line, err := json.Marshal(map[string]any{
		"client":     "go-redis",
		"version":    version(),
		"operations": r.operations,
		"errors":     errorsSeen,
		"wrong":      wrongSeen,
		"p50_us":     at(0.5).Microseconds(),
		"p99_us":     at(0.99).Microseconds(),
		"longest_ms": float64(at(1).Microseconds()/100) / 10,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
	if errorsSeen+wrongSeen > 0 {
		os.Exit(1)
	}
}

// complain tells some of what was seen, and how much there was in all.
func complain(seen map[string]int) (total int) {
	told := 0
	for what, count := range seen {
		total += count
		if told++; told <= complaintsMax {
			fmt.Fprintf(os.Stderr, "go-redis: %d x %s\n", count, what)
		}
	}
	return total
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == library {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "unknown"
}

type goRedis struct {
	client  *redis.ClusterClient
	context context.Context
}

func (g goRedis) get(key string) (*string, error) {
	return found(g.client.Get(g.context, key))
}

func (g goRedis) set(key, value string, lifetime time.Duration) (string, error) {
	return g.client.Set(g.context, key, value, lifetime).Result()
}

func (g goRedis) ttl(key string) (time.Duration, error) {
	return g.client.TTL(g.context, key).Result()
}

func (g goRedis) del(key string) (int64, error) {
	return g.client.Del(g.context, key).Result()
}

func (g goRedis) expire(key string, lifetime time.Duration) (bool, error) {
	return g.client.Expire(g.context, key, lifetime).Result()
}

func (g goRedis) incr(key string) (int64, error) {
	return g.client.Incr(g.context, key).Result()
}

func (g goRedis) setBoth(keys []string, value string) (string, error) {
	return g.client.MSet(g.context, keys[0], value, keys[1], value).Result()
}

func (g goRedis) getBoth(keys []string) ([]*string, error) {
	replies, err := g.client.MGet(g.context, keys...).Result()
	texts := make([]*string, len(replies))
	for at, reply := range replies {
		if text, is := reply.(string); is {
			texts[at] = &text
		}
	}
	return texts, err
}

func (g goRedis) getMany(keys []string) ([]*string, error) {
	replies, err := g.client.Pipelined(g.context, func(pipeline redis.Pipeliner) error {
		for _, key := range keys {
			pipeline.Get(g.context, key)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	texts := make([]*string, len(replies))
	for at, reply := range replies {
		if texts[at], err = found(reply.(*redis.StringCmd)); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

func (g goRedis) incrMany(keys []string) ([]int64, error) {
	replies, err := g.client.Pipelined(g.context, func(pipeline redis.Pipeliner) error {
		for _, key := range keys {
			pipeline.Incr(g.context, key)
		}
		return nil
	})
	numbers := make([]int64, len(replies))
	for at, reply := range replies {
		numbers[at] = reply.(*redis.IntCmd).Val()
	}
	return numbers, err
}

// found tells an answer that is absent from a failure.
func found(reply *redis.StringCmd) (*string, error) {
	text, err := reply.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return &text, err
}
