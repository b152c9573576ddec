//! One user of the store, who knows what its names hold: nobody else writes them.

use crate::Store;
use crate::report::Report;
use anyhow::Result;
use futures::future::try_join_all;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAMES: usize = 200;
const AT_ONCE: usize = 10;
const LIFETIME: i64 = 1000;

pub(crate) struct Worker<S> {
    number: u64,
    store: S,
    report: Arc<Report>,
    random: fastrand::Rng,
    generation: u64,
    operations: u64,
    latencies: Vec<Duration>,
    texts: BTreeMap<String, String>,
    counters: BTreeMap<String, i64>,
}

impl<S: Store> Worker<S> {
    pub(crate) fn new(number: u64, store: S, report: Arc<Report>) -> Worker<S> {
        Worker {
            number,
            store,
            report,
            random: fastrand::Rng::with_seed(number),
            generation: 0,
            operations: 0,
            latencies: Vec::new(),
            texts: BTreeMap::new(),
            counters: BTreeMap::new(),
        }
    }

    pub(crate) async fn work(mut self, duration: Duration) {
        while self.report.start.elapsed() < duration {
            let result = self.step().await;
            self.judge(result);
        }
        let result = self.read_back().await;
        self.judge(result);
        let mut seen = self.report.seen();
        seen.operations += self.operations;
        seen.latencies.append(&mut self.latencies);
    }

    /// After an error nobody knows what the names hold: it goes on with fresh ones.
    fn judge(&mut self, result: Result<()>) {
        let Err(error) = result else { return };
        *self.report.seen().errors.entry(format!("{error:#}")).or_default() += 1;
        self.generation += 1;
        self.texts.clear();
        self.counters.clear();
    }

    async fn step(&mut self) -> Result<()> {
        match self.random.u8(..11) {
            0 | 1 => self.get().await,
            2 => self.set().await,
            3 => self.set_for().await,
            4 => self.delete().await,
            5 => self.expire().await,
            6 => self.increment().await,
            7 => self.pair().await,
            8 => self.get_many().await,
            _ => self.increment_many().await,
        }
    }

    async fn timed<T>(&mut self, call: impl AsyncFnOnce(&S) -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let reply = call(&self.store).await?;
        if self.report.is_warm(began) {
            self.latencies.push(began.elapsed());
        }
        Ok(reply)
    }

    /// Notes the answer to so many commands, and whether it is what it must be.
    fn must<T: PartialEq + Debug>(&mut self, found: T, expected: T, what: &str, commands: u64) {
        self.operations += commands;
        if found != expected {
            let what = format!("{what}: {found:.200?} instead of {expected:.200?}");
            *self.report.seen().wrong.entry(what).or_default() += 1;
        }
    }

    async fn get(&mut self) -> Result<()> {
        let text = self.some("text");
        let found = self.timed(async |store| store.get(&text).await).await?;
        self.must(found, self.texts.get(&text).cloned(), "GET", 1);
        Ok(())
    }

    async fn set(&mut self) -> Result<()> {
        let (text, value) = (self.some("text"), self.value());
        let done = self.timed(async |store| store.set(&text, &value).await).await?;
        self.must(&*done, "OK", "SET", 1);
        self.texts.insert(text, value);
        Ok(())
    }

    async fn set_for(&mut self) -> Result<()> {
        let (text, value) = (self.some("text"), self.value());
        let done = self.timed(async |store| store.set_for(&text, &value, LIFETIME).await).await?;
        self.must(&*done, "OK", "SET EX", 1);
        let rest = self.timed(async |store| store.ttl(&text).await).await?;
        let is_alive = (LIFETIME - 10..=LIFETIME).contains(&rest);
        self.must(is_alive, true, &format!("TTL {rest}"), 1);
        self.texts.insert(text, value);
        Ok(())
    }

    async fn delete(&mut self) -> Result<()> {
        let text = self.some("text");
        let deleted = self.timed(async |store| store.delete(&text).await).await?;
        let existed = self.texts.remove(&text).is_some();
        self.must(deleted, i64::from(existed), "DEL", 1);
        Ok(())
    }

    async fn expire(&mut self) -> Result<()> {
        let text = self.some("text");
        let found = self.timed(async |store| store.expire(&text, LIFETIME).await).await?;
        self.must(found, i64::from(self.texts.contains_key(&text)), "EXPIRE", 1);
        Ok(())
    }

    async fn increment(&mut self) -> Result<()> {
        let counter = self.some("counter");
        let expected = self.counted(&counter);
        let found = self.timed(async |store| store.increment(&counter).await).await?;
        self.must(found, expected, "INCR", 1);
        Ok(())
    }

    async fn pair(&mut self) -> Result<()> {
        let (name, value) = (self.some("name"), self.value());
        let (left, right) = (format!("{{{name}}}:left"), format!("{{{name}}}:right"));
        let keys = [&*left, &*right];
        let done = self.timed(async |store| store.set_both(keys, &value).await).await?;
        self.must(&*done, "OK", "MSET", 2);
        let found = self.timed(async |store| store.get_both(keys).await).await?;
        self.must(found, vec![Some(value); 2], "MGET", 2);
        Ok(())
    }

    async fn get_many(&mut self) -> Result<()> {
        let texts = self.ten("text");
        let expected = texts.iter().map(|text| self.texts.get(text).cloned()).collect();
        let all = async |store: &S| try_join_all(texts.iter().map(|text| store.get(text))).await;
        let found = self.timed(all).await?;
        self.must(found, expected, "ten GET", AT_ONCE as u64);
        Ok(())
    }

    async fn increment_many(&mut self) -> Result<()> {
        let counters = self.ten("counter");
        let expected = counters.iter().map(|counter| self.counted(counter)).collect();
        let all = async |store: &S| try_join_all(counters.iter().map(|c| store.increment(c))).await;
        let found = self.timed(all).await?;
        self.must(found, expected, "ten INCR", AT_ONCE as u64);
        Ok(())
    }

    async fn read_back(&mut self) -> Result<()> {
        let counters = std::mem::take(&mut self.counters);
        let counters = counters.into_iter().map(|(counter, value)| (counter, value.to_string()));
        for (key, value) in std::mem::take(&mut self.texts).into_iter().chain(counters) {
            let found = self.timed(async |store| store.get(&key).await).await?;
            self.must(found, Some(value), "GET at the end", 1);
        }
        Ok(())
    }

    fn some(&mut self, kind: &str) -> String {
        let name = self.random.usize(..NAMES);
        self.key(kind, name)
    }

    fn ten(&mut self, kind: &str) -> Vec<String> {
        let first = self.random.usize(..NAMES);
        (first..first + AT_ONCE).map(|name| self.key(kind, name)).collect()
    }

    fn key(&self, kind: &str, name: usize) -> String {
        let program = std::process::id();
        format!("{kind}:{program}.{}.{}.{}", self.number, self.generation, name % NAMES)
    }

    fn value(&mut self) -> String {
        format!("{}:{}", self.operations, "x".repeat(self.random.usize(..890)))
    }

    fn counted(&mut self, counter: &str) -> i64 {
        let value = self.counters.entry(counter.to_owned()).or_default();
        *value += 1;
        *value
    }
}
