//! Small disks in memory that can be filled.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A separate small disk at a mount point.
pub(crate) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk of this size. Returns the reason if that is not possible.
    pub(crate) fn mount(at: &Path, megabytes: u32) -> Result<SmallDisk, String> {
        std::fs::create_dir_all(at).expect("a folder can be made for a test");
        let size = format!("size={megabytes}m");
        let tried =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        match tried {
            Ok(output) if output.status.success() => Ok(SmallDisk { at: at.to_path_buf() }),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Fills the remaining space.
    pub(crate) fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).expect("a file can be made");
        // Write smaller and smaller pieces, until not a single byte fits.
        for piece in [1 << 20, 4 << 10, 1] {
            let zeros = vec![0; piece];
            while file.write_all(&zeros).is_ok() {}
        }
    }

    /// Frees the filled space.
    pub(crate) fn free(&self) {
        std::fs::remove_file(self.filler()).expect("our file can be removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A process with open files keeps the disk alive until it ends.
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}
