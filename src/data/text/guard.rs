//! Calls into libraries that may panic on damaged input.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What `work` gives, or `None` where it panics; the panic prints nothing.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    // What `work` was building is dropped, nothing half done is seen.
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    QUIET.set(false);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_nothing_and_the_next_call_works() {
        assert_eq!(quietly(|| -> u8 { panic!("damaged") }), None);
        assert_eq!(quietly(|| 7), Some(7));
    }
}
