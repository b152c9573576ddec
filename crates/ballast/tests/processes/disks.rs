//! Small disks in memory, which can be filled.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk of its own at a place.
pub(crate) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Makes one of so many megabytes. `Err`: why that is not possible.
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

    /// Takes all space that is left.
    pub(crate) fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).expect("a file can be made");
        // By smaller and smaller pieces, until not a byte fits.
        for piece in [1 << 20, 4 << 10, 1] {
            let zeros = vec![0; piece];
            while file.write_all(&zeros).is_ok() {}
        }
    }

    /// Gives it back.
    pub(crate) fn free(&self) {
        std::fs::remove_file(self.filler()).expect("our file can be removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whoever still has files open keeps it alive until the end.
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}
