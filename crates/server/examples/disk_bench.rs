//! The cost of replicas on a real disk, in wall-clock time:
//! `cargo run --release -p server --example disk_bench [folder]`. The folder must be on the disk to
//! measure. The results are in `docs/design/backup.md`.

use backup::{Blocks, Disk, ReplicaWriter, Replicas};
use runtime::{
    Clock,
    files::{DataDirectory, boot_id},
};
use rustix::fs::{Advice, fadvise};
use server::shell::FileDisk;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{ClusterId, Instant, SegmentId, ServerId};
use wire::replica::{
    BootId, PieceWriter, ReplicaEpoch, ReplicaFormat, ReplicaHeader, ReplicaId, ReplicaKind, Stamp,
    piece_bytes,
};

const SEGMENT_BYTES: u32 = 8 << 20;
const FILES: u64 = 24;
const SIZES: [usize; 3] = [160, 4 << 10, 64 << 10];

fn header(segment: u64) -> ReplicaHeader {
    let id =
        ReplicaId { log: ServerId(1), segment: SegmentId(segment), epoch: ReplicaEpoch::default() };
    let (cluster, kind, boot) = (ClusterId(1), ReplicaKind::Data, BootId::default());
    ReplicaHeader {
        format: ReplicaFormat::CURRENT,
        cluster,
        id,
        kind,
        segment_bytes: SEGMENT_BYTES,
        boot,
    }
}

fn now() -> Instant {
    Clock::new().now()
}

/// Fills a segment, and returns the durations of its first `count` appends of this size.
fn fill(replica: &Arc<ReplicaWriter>, size: usize, count: usize, syncs: bool) -> Vec<Duration> {
    let mut writer = PieceWriter::new(replica.identity());
    let body = vec![7; size];
    let count = count.min(SEGMENT_BYTES as usize / size);
    let mut append = |body: &[u8]| {
        let header = writer.next(body, replica.synced(), Stamp::default());
        replica.append(&header, body).expect("the disk takes it");
    };
    let mut times = Vec::new();
    for _ in 0..count {
        let start = now();
        append(&body);
        if syncs {
            replica.sync().expect("the disk syncs");
        }
        times.push(now().since(start));
    }
    // Write the whole file, so that later uses overwrite allocated blocks.
    let rest = vec![7; SEGMENT_BYTES as usize - count * size];
    rest.chunks(64 << 10).for_each(append);
    replica.sync().expect("the disk syncs");
    times
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let at = |part: f64| micros(times[((times.len() - 1) as f64 * part) as usize]);
    let mean = micros(times.iter().sum::<Duration>()) / times.len() as f64;
    println!(
        "{what:<52} mean {mean:>9.2} p50 {:>9.2} p99 {:>9.2} p99.9 {:>9.2} us",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

/// Drops a folder's files from the page cache.
fn forget(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let file = File::open(entry.expect("it has files").path()).expect("it can be opened");
        file.sync_all().expect("the disk syncs");
        fadvise(&file, 0, None, Advice::DontNeed).expect("the system takes the advice");
    }
}

struct Bench {
    replicas: Replicas,
    folder: std::path::PathBuf,
    next: u64,
    /// Replicas in preallocated files.
    ready: Vec<Arc<ReplicaWriter>>,
}

impl Bench {
    fn create(&mut self, what: &str, count: u64) -> Vec<Arc<ReplicaWriter>> {
        let mut times = Vec::new();
        let mut made = Vec::new();
        for _ in 0..count {
            self.next += 1;
            let start = now();
            made.push(self.replicas.create(header(self.next)).expect("the disk has room"));
            times.push(now().since(start));
        }
        show(what, times);
        made
    }

    fn free(&self, what: &str, replicas: Vec<Arc<ReplicaWriter>>) {
        let mut times = Vec::new();
        for replica in replicas {
            let id = replica.id();
            drop(replica);
            let start = now();
            self.replicas.free(id).expect("the file can go");
            times.push(now().since(start));
        }
        show(what, times);
    }

    /// Measures appends to preallocated files, to new files, to reused files, and to reused files
    /// that are not in the page cache.
    fn appends(&mut self, size: usize, syncs: bool) {
        let with = if syncs { "append + sync" } else { "append" };
        let count = if syncs { 300 } else { usize::MAX };
        for file in ["made ready", "new file", "used again", "used again, not in memory"] {
            let mut made = Vec::new();
            match file {
                "made ready" => (0..4).for_each(|_| made.extend(self.create_ready())),
                "used again, not in memory" => forget(&self.folder),
                _ => {}
            }
            if made.is_empty() {
                made = self.create(&format!("create, {file}"), 4);
            }
            let times = made.iter().flat_map(|replica| fill(replica, size, count, syncs)).collect();
            show(&format!("{with} {size} B, {file}"), times);
            if file == "made ready" {
                // Keep these replicas, so that the next ones get new files.
                self.ready.extend(made);
            } else {
                self.free("free, file kept", made);
            }
        }
        self.ready.clear();
    }

    fn create_ready(&mut self) -> Vec<Arc<ReplicaWriter>> {
        let start = now();
        self.replicas.prepare(SEGMENT_BYTES, 1, Blocks::Written).expect("the disk has room");
        show("prepare", vec![now().since(start)]);
        self.create("create, made ready", 1)
    }

    fn reading(&mut self, size: usize) {
        let made = self.create("create, new file", FILES);
        for replica in &made {
            fill(replica, size, usize::MAX, false);
        }
        let ids: Vec<_> = made.iter().map(|replica| replica.id()).collect();
        for place in ["in memory", "not in memory"] {
            if place.starts_with("not") {
                forget(&self.folder);
            }
            let start = now();
            let bytes = self.read_all(&ids);
            let rate = bytes as f64 / now().since(start).as_secs_f64() / 1e9;
            let share = size as f64 / piece_bytes(size) as f64;
            println!("read pieces of {size} B, {place}: {rate:.2} GB/s, {share:.2} of the file");
        }
        self.free("free, most files removed", made);
    }

    /// Reads replicas into memory, with read-ahead of the next one.
    fn read_all(&self, ids: &[ReplicaId]) -> usize {
        let mut segment = vec![0u8; SEGMENT_BYTES as usize];
        let mut bytes = 0;
        for (at, id) in ids.iter().enumerate() {
            if let Some(next) = ids.get(at + 1) {
                self.replicas.read_ahead(*next).expect("it is there");
            }
            let mut filled = 0;
            let copied = self.replicas.read(*id, |body| {
                segment[filled..filled + body.len()].copy_from_slice(body);
                filled += body.len();
            });
            bytes += copied.expect("it can be read").length as usize;
        }
        bytes
    }
}

/// Runs `work` with a bench in an empty folder.
fn with_bench(root: &Path, work: impl FnOnce(&mut Bench)) {
    let directory = DataDirectory::open(root).expect("it can be a data directory");
    let disk = FileDisk::open(&directory).expect("it can hold replicas");
    for number in disk.list().expect("it can be listed") {
        disk.remove(number).expect("it can be emptied");
    }
    let boot = BootId(boot_id().expect("the system has one"));
    let replicas = Replicas::open(Arc::new(disk), boot).expect("it is empty").replicas;
    work(&mut Bench { replicas, folder: root.join("replicas"), next: 0, ready: Vec::new() });
}

fn main() {
    let root = std::env::args().nth(1).unwrap_or_else(|| "disk_bench.data".to_owned());
    let root = Path::new(&root);
    for size in SIZES {
        for syncs in [false, true] {
            with_bench(root, |bench| bench.appends(size, syncs));
        }
        with_bench(root, |bench| bench.reading(size));
    }
    std::fs::remove_dir_all(root).expect("it can be removed");
}
