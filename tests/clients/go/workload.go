package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	workers       = 8
	names         = 200
	atOnce        = 10
	lifetime      = 1000 * time.Second
	warmUp        = time.Second
	complaintsMax = 6
)

// store is what the workload asks of a library. A text that is not there is nil.
type store interface {
	get(key string) (*string, error)
	set(key, value string, lifetime time.Duration) (string, error)
	ttl(key string) (time.Duration, error)
	del(key string) (int64, error)
	expire(key string, lifetime time.Duration) (bool, error)
	incr(key string) (int64, error)
	setBoth(keys []string, value string) (string, error)
	getBoth(keys []string) ([]*string, error)
	getMany(keys []string) ([]*string, error)
	incrMany(keys []string) ([]int64, error)
}

// report is what all workers of the program have seen.
type report struct {
	sync.Mutex
	start      time.Time
	operations int
	latencies  []time.Duration
	errors     map[string]int
	wrong      map[string]int
}

func newReport() *report {
	return &report{start: time.Now(), errors: map[string]int{}, wrong: map[string]int{}}
}

func (r *report) count(where map[string]int, what string) {
	r.Lock()
	defer r.Unlock()
	where[what]++
}

// worker knows what its names hold: nobody else writes them.
type worker struct {
	number, generation, operations int
	store                          store
	report                         *report
	latencies                      []time.Duration
	texts                          map[string]string
	counters                       map[string]int64
}

func newWorker(number int, store store, report *report) *worker {
	worker := &worker{number: number, store: store, report: report}
	worker.forget()
	return worker
}

func (w *worker) forget() {
	w.generation++
	w.texts, w.counters = map[string]string{}, map[string]int64{}
}

func (w *worker) work(end time.Time) {
	steps := []struct {
		name string
		run  func() error
	}{
		{"get", w.get}, {"get", w.get}, {"set", w.set}, {"set for", w.setFor}, {"del", w.del},
		{"expire", w.expire}, {"incr", w.incr}, {"pair", w.pair}, {"ten get", w.getMany},
		{"ten incr", w.incrMany}, {"ten incr", w.incrMany},
	}
	for time.Now().Before(end) {
		step := steps[rand.IntN(len(steps))]
		w.careful(step.name, step.run)
	}
	w.careful("read back", w.readBack)
	w.report.Lock()
	defer w.report.Unlock()
	w.report.operations += w.operations
	w.report.latencies = append(w.report.latencies, w.latencies...)
}

func (w *worker) careful(name string, step func() error) {
	if err := step(); err != nil {
		w.report.count(w.report.errors, cut(fmt.Sprintf("%s: %v", name, err), 300))
		w.forget()
	}
}

// must notes the answer to so many commands, and whether it is what it must be.
func (w *worker) must(found, expected any, what string, commands int) {
	w.operations += commands
	if !reflect.DeepEqual(found, expected) {
		text := fmt.Sprintf("%s: %s instead of %s", what, shown(found), shown(expected))
		w.report.count(w.report.wrong, text)
	}
}

// timed carries a call out and notes how long it took.
func timed[T any](w *worker, call func() (T, error)) (T, error) {
	began := time.Now()
	reply, err := call()
	if err == nil && began.Sub(w.report.start) > warmUp {
		w.latencies = append(w.latencies, time.Since(began))
	}
	return reply, err
}

func (w *worker) some(kind string) string {
	return w.key(kind, rand.IntN(names))
}

func (w *worker) key(kind string, number int) string {
	return fmt.Sprintf("%s:%d.%d.%d.%d", kind, os.Getpid(), w.number, w.generation, number%names)
}

func (w *worker) ten(kind string) []string {
	first, keys := rand.IntN(names), make([]string, atOnce)
	for offset := range keys {
		keys[offset] = w.key(kind, first+offset)
	}
	return keys
}

func (w *worker) value() string {
	return fmt.Sprintf("%d:%s", w.operations, strings.Repeat("x", rand.IntN(890)))
}

func (w *worker) known(text string) *string {
	if value, found := w.texts[text]; found {
		return &value
	}
	return nil
}

func (w *worker) get() error {
	text := w.some("text")
	found, err := timed(w, func() (*string, error) { return w.store.get(text) })
	if err == nil {
		w.must(found, w.known(text), "GET", 1)
	}
	return err
}

func (w *worker) set() error {
	return w.setText(w.some("text"), 0)
}

func (w *worker) setFor() error {
	text := w.some("text")
	if err := w.setText(text, lifetime); err != nil {
		return err
	}
	rest, err := timed(w, func() (time.Duration, error) { return w.store.ttl(text) })
	if err == nil {
		alive := lifetime-10*time.Second <= rest && rest <= lifetime
		w.must(alive, true, fmt.Sprint("TTL ", rest), 1)
	}
	return err
}

func (w *worker) setText(text string, lifetime time.Duration) error {
	value := w.value()
	found, err := timed(w, func() (string, error) { return w.store.set(text, value, lifetime) })
	if err == nil {
		w.must(found, "OK", "SET", 1)
		w.texts[text] = value
	}
	return err
}

func (w *worker) del() error {
	text := w.some("text")
	found, err := timed(w, func() (int64, error) { return w.store.del(text) })
	if err == nil {
		w.must(found == 1, w.known(text) != nil, "DEL", 1)
		delete(w.texts, text)
	}
	return err
}

func (w *worker) expire() error {
	text := w.some("text")
	found, err := timed(w, func() (bool, error) { return w.store.expire(text, lifetime) })
	if err == nil {
		w.must(found, w.known(text) != nil, "EXPIRE", 1)
	}
	return err
}

func (w *worker) incr() error {
	counter := w.some("counter")
	w.counters[counter]++
	found, err := timed(w, func() (int64, error) { return w.store.incr(counter) })
	if err == nil {
		w.must(found, w.counters[counter], "INCR", 1)
	}
	return err
}

func (w *worker) pair() error {
	name, value := w.some("name"), w.value()
	keys := []string{"{" + name + "}:left", "{" + name + "}:right"}
	done, err := timed(w, func() (string, error) { return w.store.setBoth(keys, value) })
	if err != nil {
		return err
	}
	w.must(done, "OK", "MSET", 2)
	found, err := timed(w, func() ([]*string, error) { return w.store.getBoth(keys) })
	if err == nil {
		w.must(found, []*string{&value, &value}, "MGET", 2)
	}
	return err
}

func (w *worker) getMany() error {
	texts := w.ten("text")
	expected := make([]*string, len(texts))
	for at, text := range texts {
		expected[at] = w.known(text)
	}
	found, err := timed(w, func() ([]*string, error) { return w.store.getMany(texts) })
	if err == nil {
		w.must(found, expected, "ten GET", atOnce)
	}
	return err
}

func (w *worker) incrMany() error {
	counters := w.ten("counter")
	expected := make([]int64, len(counters))
	for at, counter := range counters {
		w.counters[counter]++
		expected[at] = w.counters[counter]
	}
	found, err := timed(w, func() ([]int64, error) { return w.store.incrMany(counters) })
	if err == nil {
		w.must(found, expected, "ten INCR", atOnce)
	}
	return err
}

func (w *worker) readBack() error {
	for counter, value := range w.counters {
		w.texts[counter] = strconv.FormatInt(value, 10)
	}
	for key, value := range w.texts {
		found, err := timed(w, func() (*string, error) { return w.store.get(key) })
		if err != nil {
			return err
		}
		w.must(found, &value, "GET at the end", 1)
	}
	return nil
}

// shown tells a value so that a person can read it.
func shown(value any) string {
	texts, several := value.([]*string)
	if text, one := value.(*string); one {
		texts = []*string{text}
	} else if !several {
		return fmt.Sprint(value)
	}
	parts := make([]string, len(texts))
	for at, text := range texts {
		parts[at] = "nothing"
		if text != nil {
			parts[at] = cut(*text, 20)
		}
	}
	return strings.Join(parts, ", ")
}

func cut(text string, length int) string {
	return text[:min(len(text), length)]
}
