//! Memory that O_DIRECT takes: aligned to a block, a whole number of blocks long.
//!
//! Owns: the allocation. Never does: I/O. Invariant: every byte below `len` is initialized.

use std::{
    alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error},
    fmt,
    mem::MaybeUninit,
    ptr::NonNull,
};

use parking_lot::Mutex;

use super::layout::BLOCK;

/// Blocks of the buffers that are kept for reuse: those of a record of 1 MiB, which is what nearly all reads are of.
const POOLED_BLOCKS: usize = 257;
/// Buffers kept: as many as are read at once on a busy device. Fresh memory costs a page fault for every block, and that
/// is more than the device takes for it.
const POOL_MAX: usize = 16;

static POOL: Mutex<Vec<Pooled>> = Mutex::new(Vec::new());

/// A buffer in the pool; the pool itself is never dropped.
struct Pooled(AlignedBuffer);

/// An owned, block-aligned buffer.
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the buffer owns its memory alone, as a `Box<[u8]>` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `blocks` blocks of zeros, at least one.
    pub fn zeroed(blocks: usize) -> Self {
        let layout = Self::layout(blocks);
        // SAFETY: the layout is not of size zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        Self { pointer, layout, len: layout.size() }
    }

    /// `blocks` blocks that `fill` writes: it gets the uninitialized memory and says how many bytes from its beginning
    /// it initialized.
    ///
    /// # Errors
    /// Those of `fill`.
    ///
    /// # Safety
    /// `fill` must have initialized as many bytes as it says, no more than the memory has.
    pub unsafe fn filled_by<E>(
        blocks: usize,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<usize, E>,
    ) -> Result<Self, E> {
        let mut buffer = Self::pooled(blocks).unwrap_or_else(|| Self::uninitialized(blocks));
        let layout = buffer.layout;
        // SAFETY: that many bytes were allocated, and `MaybeUninit` needs no initialization.
        let memory = unsafe { std::slice::from_raw_parts_mut(buffer.pointer.as_ptr().cast(), layout.size()) };
        buffer.len = fill(memory)?.min(layout.size());
        Ok(buffer)
    }

    /// Of length 0.
    fn uninitialized(blocks: usize) -> Self {
        let layout = Self::layout(blocks);
        // SAFETY: the layout is not of size zero.
        let pointer = unsafe { alloc(layout) };
        let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(layout) };
        Self { pointer, layout, len: 0 }
    }

    fn pooled(blocks: usize) -> Option<Self> {
        if blocks != POOLED_BLOCKS { None } else { POOL.lock().pop().map(|memory| memory.0) }
    }

    fn layout(blocks: usize) -> Layout {
        Layout::from_size_align(blocks.max(1) * BLOCK, BLOCK).expect("callers ask for megabytes at most")
    }
}

impl std::ops::Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are initialized and owned by this buffer.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.layout.size() == POOLED_BLOCKS * BLOCK {
            let mut pool = POOL.lock();
            if pool.len() < POOL_MAX {
                pool.push(Pooled(Self { pointer: self.pointer, layout: self.layout, len: 0 }));
                return;
            }
        }
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({})", self.len)
    }
}
