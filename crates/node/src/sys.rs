//! What no safe wrapper offers: how the C library's allocator keeps memory, and waiting for a bare file descriptor.
#![allow(unsafe_code)] // mallopt, malloc_trim and AsyncFd::register have no safe wrapper.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for what comes in. Must be called inside a tokio runtime.
///
/// # Errors
/// The runtime cannot take the descriptor.
pub(crate) fn watch_readable(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd gives the same open descriptor as long as it lives, and AsyncFd keeps it.
    unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }.map_err(io::Error::from)
}

/// One heap for all threads. Threads of their own heaps keep what a big list once took.
pub(crate) fn share_one_heap() {
    // SAFETY: mallopt takes two integers and changes the allocator's settings under its own lock.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives the memory back that is free.
pub(crate) fn give_memory_back() {
    // SAFETY: malloc_trim takes an integer and works on the allocator's own free memory under its own lock.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_free_goes_back_to_the_system() {
        share_one_heap();
        let blocks: Vec<Vec<u8>> = (0..50_000).map(|_| vec![1; 1000]).collect();
        let full = crate::process::usage().unwrap().resident_bytes;
        drop(blocks);
        give_memory_back();
        let after = crate::process::usage().unwrap().resident_bytes;
        assert!(after + 30_000_000 < full, "{full} to {after} bytes");
    }
}
