//! Resource usage of processes and of the machine, read from `/proc`.

use anyhow::{Context, Result};
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Clock ticks per second in `/proc`: a constant of the kernel's interface to user space.
const TICKS_PER_SECOND: u64 = 100;
const PAGE_BYTES: u64 = 4096;

/// Returns the processor time of a process.
///
/// The time of running threads is exact to a nanosecond, that of ended threads to 10 ms. Children
/// (Valkey forks to take a snapshot) count when they have ended, to 10 ms.
pub fn cpu_time(process: u32) -> Result<Duration> {
    let mut living = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread can end between listing and reading.
        if let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) {
            living += Duration::from_nanos(field(&text, 0).unwrap_or(0));
        }
    }
    let stat = stat_fields(process)?;
    let ticks = |place| field(&stat, place).unwrap_or(0) + field(&stat, place + 1).unwrap_or(0);
    Ok(living.max(ticks_time(ticks(OWN_USER))) + ticks_time(ticks(CHILDREN_USER)))
}

/// Position of `utime` among the fields after the command's name; `stime` follows it.
const OWN_USER: usize = 11;
/// Position of `cutime`; `cstime` follows it.
const CHILDREN_USER: usize = 13;

/// Returns the resident memory of a process in bytes.
pub fn resident_bytes(process: u32) -> Result<u64> {
    let statm = fs::read_to_string(format!("/proc/{process}/statm"))?;
    Ok(field(&statm, 1).context("statm has no second field")? * PAGE_BYTES)
}

/// Returns the memory of a process in huge pages, in bytes.
pub fn huge_page_bytes(process: u32) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let kib = |name: &str| named_field(&rollup, name).unwrap_or(0);
    Ok((kib("AnonHugePages:") + kib("ShmemPmdMapped:") + kib("FilePmdMapped:")) * 1024)
}

/// Returns the steal time: processors of this machine were ready to run, but its host ran others.
pub fn steal_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    // The first line counts for all processors.
    Ok(ticks_time(field(&stat, 8).context("/proc/stat has no steal time")?))
}

/// Returns the number of processors of the machine.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns a description of the machine in one line: processors, memory, kernel.
pub fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let model = model.replace("(R)", "").replace("(TM)", "");
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let gigabytes = (field(&meminfo, 1).unwrap_or(0) as f64 / f64::from(1 << 20)).ceil();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = kernel.trim().split('.').take(2).collect();
    format!("{} x {model}, {gigabytes} GiB, Linux {}", processors(), kernel.join("."))
}

/// Returns the time that this machine's processors have worked for any process.
pub fn busy_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat")?;
    // User, nice, system, hardware and software interrupts; not idle, waiting or stolen.
    let ticks = [1, 2, 3, 6, 7].into_iter().filter_map(|place| field(&stat, place)).sum();
    Ok(ticks_time(ticks))
}

/// Returns the bytes of memory that processes can still allocate without swapping or kills: the
/// kernel's estimate, or less if a control group allows less.
pub fn available_bytes() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let kib =
        named_field(&meminfo, "MemAvailable:").context("/proc/meminfo has no MemAvailable")?;
    let group = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let number = |text: String| text.trim().parse::<u64>().ok();
    let limit = group("memory.max").and_then(number);
    let used = group("memory.current").and_then(number);
    let allowed = limit.zip(used).map_or(u64::MAX, |(limit, used)| limit.saturating_sub(used));
    Ok((kib * 1024).min(allowed))
}

/// Replaces this process by `command`. The kernel kills it as soon as `parent`, which started
/// this process, has ended. No server is left behind, even if the parent is killed.
pub fn become_child(parent: u32, command: &[OsString]) -> Result<Infallible> {
    let [program, arguments @ ..] = command else { anyhow::bail!("no command is given") };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let is_orphan =
        rustix::process::getppid().is_none_or(|now| now.as_raw_nonzero().get() != parent as i32);
    anyhow::ensure!(!is_orphan, "process {parent} has ended");
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}

/// Usage of a set of processes up to one moment.
#[derive(Clone, Debug)]
pub struct UsageSnapshot {
    processes: Vec<u32>,
    used: Vec<Duration>,
    own: Duration,
    busy: Duration,
    steal: Duration,
}

/// Usage between two moments.
#[derive(Clone, Debug)]
pub struct ProcessorUsage {
    /// Processor time of each process, in the order given.
    pub each: Vec<Duration>,
    /// Processor time of all other processes except this one, to about 20 ms.
    pub foreign: Duration,
    /// Steal time of the machine.
    pub steal: Duration,
}

impl UsageSnapshot {
    /// Measures the usage up to now.
    pub fn of(processes: &[u32]) -> Result<UsageSnapshot> {
        let used = processes.iter().map(|&process| cpu_time(process)).collect::<Result<_>>()?;
        Ok(UsageSnapshot {
            processes: processes.to_vec(),
            used,
            own: cpu_time(std::process::id())?,
            busy: busy_time()?,
            steal: steal_time()?,
        })
    }

    /// Returns the usage since then.
    pub fn since(&self) -> Result<ProcessorUsage> {
        let now = UsageSnapshot::of(&self.processes)?;
        let pairs = now.used.iter().zip(&self.used);
        let each: Vec<Duration> = pairs.map(|(now, then)| now.saturating_sub(*then)).collect();
        let ours = each.iter().sum::<Duration>() + now.own.saturating_sub(self.own);
        let foreign = now.busy.saturating_sub(self.busy).saturating_sub(ours);
        Ok(ProcessorUsage { each, foreign, steal: now.steal.saturating_sub(self.steal) })
    }
}

impl ProcessorUsage {
    /// Returns the processor time of all processes together.
    pub fn total(&self) -> Duration {
        self.each.iter().sum()
    }
}

/// Returns the fields of `/proc/PID/stat` after the command's name, which may contain blanks.
fn stat_fields(process: u32) -> Result<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("stat names no command")?;
    Ok(fields.to_string())
}

fn ticks_time(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Returns the number in the line that begins with `name`.
fn named_field(text: &str, name: &str) -> Option<u64> {
    field(text.lines().find(|line| line.starts_with(name))?, 1)
}

fn field(line: &str, position: usize) -> Option<u64> {
    line.split_ascii_whitespace().nth(position)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_uses_processor_time_and_memory() {
        let me = std::process::id();
        let usage = UsageSnapshot::of(&[me]).unwrap();
        let mut number = 1u64;
        for step in 0..20_000_000u64 {
            number = std::hint::black_box(number.wrapping_mul(step | 1));
        }
        let used = usage.since().unwrap();
        assert!(used.total() > Duration::from_millis(1), "{:?} {number}", used.total());
        assert!(resident_bytes(me).unwrap() > 100_000);
        assert!(huge_page_bytes(me).is_ok());
        assert!(machine().contains("Linux"));
    }
}
