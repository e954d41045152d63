//! Calls to the store that cannot end a worker: they time out, and their panics are errors.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::error::{StateError, StateErrorKind};

/// How long a call to the store may go unanswered: longer than any reasonable wait for a lock.
const LONGEST_CALL: Duration = Duration::from_secs(30);

/// Runs a call to the state adapter. A panic in the call and a call that is not answered for long become transient errors,
/// because a worker must not end because of them. A call that is cut off has happened entirely or not at all, and is
/// repeated under the same fence.
pub(crate) async fn contained<T>(call: impl Future<Output = Result<T, StateError>>) -> Result<T, StateError> {
    let message = match tokio::time::timeout(LONGEST_CALL, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(result)) => return result,
        Ok(Err(panic)) => format!("the state adapter panicked: {}", panic_message(&*panic)),
        Err(_) => format!("the store did not answer within {LONGEST_CALL:?}; look for a broken connection or a lock"),
    };
    Err(StateError::new(StateErrorKind::Transient, message))
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a value that is no text"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_panics_or_is_never_answered_is_a_transient_failure() {
        let silent = contained(std::future::pending::<Result<(), StateError>>())
            .await
            .unwrap_err();
        assert_eq!(silent.kind(), StateErrorKind::Transient);
        assert!(silent.to_string().contains("did not answer"), "{silent}");
        let call = async { if true { panic!("oh") } else { Ok(()) } };
        let panicked = contained(call).await.unwrap_err();
        assert_eq!(panicked.kind(), StateErrorKind::Transient);
        assert!(panicked.to_string().contains("oh"), "{panicked}");
    }
}
