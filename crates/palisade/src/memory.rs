//! The memory of this process.

/// Another thread frees most of what a server allocates; `docs/evidence/performance.md` has measurements.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns freed memory to the operating system. By itself the allocator does so only at its next large
/// allocation, which may never come.
pub(crate) fn give_memory_back() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Uses small memory pages, for processes that only serve. Huge pages take a fifth more memory for a million locks,
/// and allocating one can stop a thread for a tenth of a second. Children inherit this, so never for `palisade run`.
pub(crate) fn small_pages() {
    // An optimisation only: older kernels do not support it.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
