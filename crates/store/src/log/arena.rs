//! The memory of a server: one private mapping, divided into segments of equal size.
//!
//! No page is touched at start, so that resident memory follows use. The mapping is one segment
//! longer than the arena, and the arena begins at a multiple of the segment size. So a huge page
//! never spans two segments.
//!
//! The arena provides raw memory. `segment.rs` defines the rules for writing and reading it.
#![expect(unsafe_code, reason = "the memory of the server is one mapping")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::{ffi::c_void, ptr::NonNull};

/// Use of huge pages, as far as the operating system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Not requested.
    NotAsked,
    /// Requested; the system accepted the advice. `/proc/self/smaps` shows the number of huge
    /// pages.
    Advised,
    /// Requested; the system refused.
    Refused,
}

/// A mapping of zeroed memory.
pub(super) struct Arena {
    /// Start of the mapping, for unmapping.
    mapping: NonNull<c_void>,
    mapping_bytes: usize,
    /// Start of the first segment.
    base: NonNull<u8>,
    bytes: usize,
    huge_pages: HugePages,
}

// SAFETY: the arena owns its mapping, which any thread may use. It returns only pointers; code
// that dereferences them has its own safety argument.
unsafe impl Send for Arena {}
// SAFETY: as above; no method changes the arena.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes`, a multiple of `alignment`, which is a power of two and a multiple of a page.
    pub(super) fn map(
        bytes: usize,
        alignment: usize,
        huge_pages: bool,
    ) -> Result<Arena, rustix::io::Errno> {
        assert!(alignment.is_power_of_two() && bytes.is_multiple_of(alignment) && bytes > 0);
        let mapping_bytes = bytes + alignment;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address of the system's choice overlaps nothing.
        let mapping =
            unsafe { mmap_anonymous(std::ptr::null_mut(), mapping_bytes, protection, flags)? };
        let skipped = mapping.cast::<u8>().align_offset(alignment);
        // SAFETY: the next multiple of `alignment` is less than `alignment` bytes away, so `bytes`
        // from there lie within the mapping.
        let base = unsafe { mapping.cast::<u8>().add(skipped) };
        let huge_pages = match huge_pages {
            false => HugePages::NotAsked,
            // SAFETY: the range lies within our mapping; the advice changes no content.
            true => match unsafe { madvise(base.cast(), bytes, Advice::LinuxHugepage) } {
                Ok(()) => HugePages::Advised,
                Err(_) => HugePages::Refused,
            },
        };
        Ok(Arena {
            mapping: NonNull::new(mapping).expect("a mapping is not at address 0"),
            mapping_bytes,
            base: NonNull::new(base).expect("a mapping is not at address 0"),
            bytes,
            huge_pages,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn huge_pages(&self) -> HugePages {
        self.huge_pages
    }

    /// Returns a pointer to `length` bytes at `offset`. They are initialized and mapped as long
    /// as the arena lives.
    #[inline]
    pub(super) fn at(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(
            offset <= self.bytes && length <= self.bytes - offset,
            "{length} bytes at {offset} do not lie in the arena"
        );
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.base.add(offset) }
    }

    /// Makes the pages of a range resident without changing their contents, even during writes by
    /// other threads. Returns `false` on processors other than x86-64 and AArch64.
    ///
    /// The pages are touched one by one, not with one `madvise` call. That call holds the lock of
    /// the process's address space. If a thread of the lowest priority is descheduled meanwhile,
    /// every thread that maps memory waits, for seconds on a busy machine. A page fault holds
    /// only the lock of this mapping, for reading.
    pub(super) fn populate(&self, offset: usize, length: usize) -> bool {
        let start = self.at(offset, length);
        (0..length).step_by(PAGE_BYTES_MIN).all(|page| {
            // SAFETY: the page lies within the range, which is mapped and writable.
            unsafe { touch(start.add(page)) }
        })
    }
}

impl Arena {
    /// Gives the memory of a range back to the operating system. The range is zero and not
    /// resident afterwards. Returns `false`, and changes nothing, if the system refuses.
    ///
    /// # Safety
    /// No thread reads or writes the range meanwhile, and nobody needs its content.
    pub(super) unsafe fn give_back(&self, offset: usize, length: usize) -> bool {
        let start = self.at(offset, length).as_ptr();
        // SAFETY: the range lies within our mapping, and nobody uses it, as the caller guarantees.
        unsafe { madvise(start.cast(), length, Advice::LinuxDontNeed) }.is_ok()
    }
}

/// Smallest page size of the processors that [`touch`] supports.
const PAGE_BYTES_MIN: usize = 4096;

/// Causes the page fault that a write to the byte would cause, and leaves the byte unchanged.
/// Returns whether the processor is supported.
///
/// This is assembly because another thread may write the byte at the same time without an atomic
/// instruction. For the language this has no effect, so there is no data race. For the processor
/// it is an atomic addition of 0, which preserves concurrent writes.
///
/// # Safety
/// The byte is mapped, readable and writable.
#[inline]
unsafe fn touch(byte: NonNull<u8>) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: adds 0 atomically to a byte that is writable, as the caller guarantees.
    unsafe {
        std::arch::asm!("lock add byte ptr [{}], 0", in(reg) byte.as_ptr(), options(nostack));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above. The store succeeds only if no other thread wrote the byte since the load.
    unsafe {
        std::arch::asm!(
            "2:",
            "ldxrb {value:w}, [{byte}]",
            "stxrb {failed:w}, {value:w}, [{byte}]",
            "cbnz {failed:w}, 2b",
            byte = in(reg) byte.as_ptr(),
            value = out(reg) _,
            failed = out(reg) _,
            options(nostack)
        );
    }
    let _ = byte;
    cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped only here; all users of the memory keep the arena
        // alive.
        let unmapped = unsafe { munmap(self.mapping.as_ptr(), self.mapping_bytes) };
        debug_assert!(unmapped.is_ok(), "the arena does not unmap: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_aligned_and_zeroed() {
        for huge_pages in [false, true] {
            let arena = Arena::map(8 << 20, 4 << 20, huge_pages).unwrap();
            assert_eq!(arena.at(0, 0).as_ptr() as usize % (4 << 20), 0);
            assert_eq!(huge_pages, arena.huge_pages() != HugePages::NotAsked);
            // SAFETY: in range, and no other code uses it.
            let last = unsafe { arena.at((8 << 20) - 1, 1).read() };
            assert_eq!(last, 0);
        }
    }

    #[test]
    fn populating_keeps_what_is_there() {
        let arena = Arena::map(4 << 20, 4 << 20, false).unwrap();
        // SAFETY: in range, and no other code uses it.
        unsafe { arena.at(5000, 1).write(7) };
        arena.populate(0, 4 << 20);
        // SAFETY: as above.
        assert_eq!(unsafe { arena.at(5000, 1).read() }, 7);
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn populating_makes_pages_resident() {
        let arena = Arena::map(4 << 20, 4 << 20, false).unwrap();
        let resident = || {
            let mut pages = vec![0_u8; (4 << 20) / 4096];
            // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
            let asked = unsafe {
                libc::mincore(arena.at(0, 0).as_ptr().cast(), 4 << 20, pages.as_mut_ptr())
            };
            assert_eq!(asked, 0);
            pages.iter().filter(|page| **page & 1 == 1).count()
        };
        assert_eq!(resident(), 0);
        assert!(arena.populate(4096, 8192));
        assert_eq!(resident(), 2);
        assert!(arena.populate(0, 4 << 20));
        assert_eq!(resident(), 1024);
        // SAFETY: in range, and no other code uses it.
        unsafe { arena.at(4096, 1).write(7) };
        // SAFETY: as above.
        assert!(unsafe { arena.give_back(0, 4 << 20) });
        assert_eq!(resident(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { arena.at(4096, 1).read() }, 0);
    }

    #[test]
    #[should_panic = "do not lie in the arena"]
    fn a_range_past_the_end_is_our_bug() {
        Arena::map(4 << 20, 4 << 20, false).unwrap().at(4 << 20, 1);
    }
}
