//! A fixed set of worker threads for jobs of microseconds: workers spin briefly for the next job, then park.
//!
//! A job is closed as soon as its tasks are done; a worker that was still asleep is not waited for. A call from
//! inside a task, or while another thread's job is running, runs its tasks in the calling thread.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Rounds a worker spins before it parks: about 0.1 ms, longer than the serial part between two layers.
const SPINS: u32 = 2000;

/// The closure of the current job, its lifetime erased.
type Task = *const (dyn Fn(usize) + Sync);

struct Job {
    task: Task,
    tasks: usize,
}

/// State word: epoch in the high half, number of workers inside the job times two, lowest bit: open.
struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    parked: AtomicUsize,
    quit: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written only by the thread that holds `Pool::busy` while the state is closed with nobody
// inside, and read only by workers that joined an open state; the state word orders the two. The task pointer
// in it refers to a `Sync` closure.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only dereferenced while the closure is borrowed by `for_each`.
unsafe impl Send for Shared {}

const OPEN: u64 = 1;
const INSIDE: u64 = 2;
const EPOCH: u64 = 1 << 32;

/// Worker threads; the thread that calls [`Pool::for_each`] works too.
pub struct Pool {
    shared: Arc<Shared>,
    busy: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool in which `threads` threads work, the caller included (at least 1). Threads that the system
    /// refuses to start are done without.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            parked: AtomicUsize::new(0),
            quit: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let workers = (1..threads)
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("kernel-{i}")).spawn(move || work(&shared)).ok()
            })
            .collect();
        Self { shared, busy: Mutex::new(()), workers }
    }

    /// Threads that work on a job, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(i)` once for each `i < tasks`, in no fixed order, and returns when all calls have returned.
    ///
    /// # Panics
    /// Goes on with a panic of a task, after every running task has ended; tasks not begun by then are skipped.
    pub fn for_each(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let guard = if tasks > 1 && !self.workers.is_empty() { try_lock(&self.busy) } else { None };
        let Some(_guard) = guard else {
            (0..tasks).for_each(f);
            return;
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is used by workers inside the job only, and this
        // function does not return (nor unwind) before the job is closed and all of them have left.
        let task = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Task>(f) };
        // SAFETY: `busy` is held, the state is closed and nobody is inside.
        unsafe { *shared.job.get() = Some(Job { task, tasks }) };
        shared.next.store(0, Ordering::Relaxed);
        let epoch = (shared.state.load(Ordering::Relaxed) & !(EPOCH - 1)).wrapping_add(EPOCH);
        shared.state.store(epoch | OPEN, Ordering::SeqCst);
        if shared.parked.load(Ordering::SeqCst) > 0 {
            drop(lock(&shared.sleep));
            shared.wake.notify_all();
        }
        run_tasks(shared, f, tasks);
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) & (EPOCH - 1) != 0 {
            spins += 1;
            if spins.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        if let Some(payload) = lock(&shared.panic).take() {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so there is nothing to report here.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock(mutex: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

fn run_tasks(shared: &Shared, f: &(dyn Fn(usize) + Sync), tasks: usize) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let i = shared.next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                break;
            }
            f(i);
        }
    }));
    if let Err(payload) = outcome {
        shared.next.store(tasks, Ordering::Relaxed);
        lock(&shared.panic).get_or_insert(payload);
    }
}

fn work(shared: &Shared) {
    let mut seen = 0u64;
    while let Some(epoch) = join(shared, seen) {
        seen = epoch;
        // SAFETY: this worker is inside the open job, so `for_each` waits for it and the closure is alive.
        unsafe {
            if let Some(job) = &*shared.job.get() {
                run_tasks(shared, &*job.task, job.tasks);
            }
        }
        shared.state.fetch_sub(INSIDE, Ordering::AcqRel);
    }
}

/// Waits for an open job newer than `seen` and enters it; `None` when the pool ends.
fn join(shared: &Shared, seen: u64) -> Option<u64> {
    let news = |state: u64| state & OPEN != 0 && state & !(EPOCH - 1) != seen;
    let mut spins = 0;
    loop {
        let state = shared.state.load(Ordering::SeqCst);
        if news(state) {
            if shared.state.compare_exchange(state, state + INSIDE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(state & !(EPOCH - 1));
            }
            continue;
        }
        if shared.quit.load(Ordering::SeqCst) {
            return None;
        }
        spins += 1;
        if spins < SPINS {
            std::hint::spin_loop();
            continue;
        }
        spins = 0;
        let guard = lock(&shared.sleep);
        shared.parked.fetch_add(1, Ordering::SeqCst);
        // Looked at again after `parked` is visible: either the job is seen here or its owner sees `parked`.
        if !news(shared.state.load(Ordering::SeqCst)) && !shared.quit.load(Ordering::SeqCst) {
            drop(shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
        shared.parked.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pointer into a slice of which different tasks write different parts.
#[derive(Clone, Copy)]
pub(in crate::engine::cpu) struct Parts<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: access goes through `slice`, whose callers promise disjoint parts.
unsafe impl<T: Send> Sync for Parts<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<T> {}

impl<T> Parts<T> {
    pub(in crate::engine::cpu) fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// `[from, from + len)` of the slice.
    ///
    /// # Safety
    /// The slice that `self` was made from must be borrowed for `'a`, and no other part that is alive may
    /// overlap this one.
    ///
    /// # Panics
    /// Where the range lies outside of the slice.
    pub(in crate::engine::cpu) unsafe fn slice<'a>(&self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from.checked_add(len).is_some_and(|end| end <= self.len), "part outside of the slice");
        // SAFETY: in bounds by the assertion, disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 3, 100, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn many_small_jobs_and_sleeps_between() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        for round in 0..2000 {
            pool.for_each(4, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            if round % 500 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        }
        assert_eq!(sum.into_inner(), 2000 * 6);
    }

    #[test]
    fn a_panic_in_a_task_comes_back_and_the_pool_works_on() {
        let pool = Pool::new(3);
        for bad in [0, 7, 63] {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.for_each(64, &|i| assert_ne!(i, bad, "bad task"))));
            assert!(outcome.is_err());
            let count = AtomicUsize::new(0);
            pool.for_each(64, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 64);
        }
    }

    #[test]
    fn nested_and_concurrent_calls_do_not_deadlock() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.for_each(4, &|_| {
                            pool.for_each(3, &|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            })
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 3 * 50 * 12);
    }
}
