//! Fills the statement that ends attempts, a whole batch at once.

use std::time::Duration;

use super::{Filling, fill};

/// How long a batch waits for a lock before it skips the row. No transaction that is at work has one for longer: a renewal, a
/// sweep or the start of a dependant is over after a few round trips and a write to the disk. And it is as long as a worker
/// waits before it writes an end again that was skipped, so waiting costs no end more than twice what it saves. A transaction
/// that keeps its lock holds up each batch that meets a row of it for this long, and only the first time: see
/// [`LockedJobs`](crate::contention::LockedJobs).
pub(crate) const LOCK_WAIT: Duration = Duration::from_millis(10);

/// What the statement for a batch must be able to do. Sections that no item needs are left out of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    finishes: bool,
    continues: bool,
    hands_over: bool,
    gives_back: bool,
    buries: bool,
    one_worker: bool,
    locking: Locking,
}

/// What becomes of a row that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Locking {
    /// The statement waits for it: in the caller's transaction, and an error if that has ended.
    #[default]
    Wait,
    /// The statement skips it.
    Skip,
    /// The whole statement fails.
    Fail,
}

/// The kinds of outcomes, as the statement knows them.
pub(crate) const FINISH: i16 = 0;
pub(crate) const CONTINUE: i16 = 1;
pub(crate) const RETRY: i16 = 2;
pub(crate) const BURY: i16 = 3;
pub(crate) const RELEASE: i16 = 4;
pub(crate) const SNOOZE: i16 = 5;

/// What is bound to the statement. All but `Worker`, `Step` and the known types are arrays with an element per item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    Jobs,
    Fences,
    Kinds,
    /// One for all items.
    Worker,
    Workers,
    /// Outputs or errors.
    Texts,
    Times,
    Delays,
    NextIds,
    NextTypes,
    NextPriorities,
    NextMaxAttempts,
    NextTraces,
    NextInputs,
    NextFences,
    NextLeases,
    /// The ageing step.
    Step,
    /// The types of all next jobs, each once, and their names: the statement does nothing unless the database has them.
    KnownTypeIds,
    KnownTypeNames,
}

impl Parameter {
    /// Its type, and the name of its column if it is an array of items.
    fn sql(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Jobs => ("uuid[]", Some("id")),
            Self::Fences => ("uuid[]", Some("fence")),
            Self::Kinds => ("smallint[]", Some("kind")),
            Self::Worker => ("text", None),
            Self::Workers => ("text[]", Some("worker")),
            Self::Texts => ("text[]", Some("text")),
            Self::Times => ("bigint[]", Some("at")),
            Self::Delays => ("bigint[]", Some("delay")),
            Self::NextIds => ("uuid[]", Some("next_id")),
            Self::NextTypes => ("integer[]", Some("next_type")),
            Self::NextPriorities => ("smallint[]", Some("next_priority")),
            Self::NextMaxAttempts => ("bigint[]", Some("max_attempts")),
            Self::NextTraces => ("text[]", Some("trace_context")),
            Self::NextInputs => ("text[]", Some("input")),
            Self::NextFences => ("uuid[]", Some("next_fence")),
            Self::NextLeases => ("bigint[]", Some("next_lease")),
            Self::Step => ("bigint", None),
            Self::KnownTypeIds => ("integer[]", None),
            Self::KnownTypeNames => ("text[]", None),
        }
    }
}

const TEMPLATE: &str = include_str!("settle/settle.sql");

impl Shape {
    pub(crate) fn of(kinds: &[i16], hands_over: bool, one_worker: bool, locking: Locking) -> Self {
        let any = |wanted: &[i16]| kinds.iter().any(|kind| wanted.contains(kind));
        Self {
            finishes: any(&[FINISH]),
            continues: any(&[CONTINUE]),
            hands_over,
            gives_back: any(&[RETRY, RELEASE, SNOOZE]),
            buries: any(&[BURY]),
            one_worker,
            locking,
        }
    }

    /// Whether items have to say of which kind they are.
    fn is_mixed(self) -> bool {
        self.gives_back || self.buries || (self.finishes && self.continues)
    }

    /// Whether items say when something is due.
    fn has_times(self) -> bool {
        self.continues || self.gives_back
    }

    /// Whether attempts complete their jobs.
    fn completes(self) -> bool {
        self.finishes || self.continues
    }

    /// Whether the rows are locked before they are deleted.
    fn locks_first(self) -> bool {
        self.locking == Locking::Skip || self.continues_before_deletion()
    }

    fn continues_before_deletion(self) -> bool {
        self.continues && self.locking != Locking::Fail
    }

    /// In the order in which they are bound.
    pub(crate) fn parameters(self) -> Vec<Parameter> {
        use Parameter::*;
        let worker = if self.one_worker { Worker } else { Workers };
        let parts: [(bool, &[Parameter]); 7] = [
            (true, &[Jobs, Fences]),
            (self.is_mixed(), &[Kinds]),
            (self.completes(), &[worker]),
            (self.finishes || self.gives_back || self.buries, &[Texts]),
            (self.has_times(), &[Times, Delays, Step]),
            (
                self.continues,
                &[
                    NextIds,
                    NextTypes,
                    NextPriorities,
                    NextMaxAttempts,
                    NextTraces,
                    NextInputs,
                    KnownTypeIds,
                    KnownTypeNames,
                ],
            ),
            (self.hands_over, &[NextFences, NextLeases]),
        ];
        let parts = parts.into_iter().filter(|(wanted, _)| *wanted);
        parts.flat_map(|(_, part)| part.iter().copied()).collect()
    }

    /// A parameter as the text refers to it.
    fn bound(self, parameter: Parameter) -> String {
        let place = self.parameters().iter().position(|each| *each == parameter);
        format!("${}::{}", place.map_or(0, |place| place + 1), parameter.sql().0)
    }

    /// The columns of an item that the statement still needs after the row was deleted.
    fn returned(self) -> String {
        let returned = |parameter: Parameter| match parameter {
            Parameter::Jobs | Parameter::Times | Parameter::Delays => None,
            // The next job is written before the deletion.
            Parameter::NextMaxAttempts | Parameter::NextTraces | Parameter::NextInputs
                if self.continues_before_deletion() =>
            {
                None
            }
            parameter => parameter.sql().1,
        };
        let columns = self.parameters().into_iter().filter_map(returned);
        let columns: Vec<String> = columns.map(|column| format!("item.{column}")).collect();
        columns.join(", ")
    }

    pub(crate) fn text(self) -> String {
        let items = self.parameters().into_iter().filter_map(|parameter| {
            let column = parameter.sql().1?;
            Some((self.bound(parameter), column))
        });
        let (arrays, columns): (Vec<String>, Vec<&str>) = items.unzip();
        let worker = if self.one_worker {
            self.bound(Parameter::Worker)
        } else {
            "ended.worker".to_owned()
        };
        let filling = Filling::none()
            .when("finishes", self.finishes)
            .when("continues", self.continues)
            .when("hands_over", self.hands_over)
            .when("gives_back", self.gives_back)
            .when("buries", self.buries)
            .when("mixed", self.is_mixed())
            .when("has_times", self.has_times())
            .when("completes", self.completes())
            .when("ends_chains", self.finishes || self.buries)
            .when("fails_attempts", self.gives_back || self.buries)
            .when("waits", self.locking == Locking::Wait)
            .when("skips", self.locking == Locking::Skip)
            .when("fails", self.locking == Locking::Fail)
            .when("locks_first", self.locks_first())
            .when("continues_before_deletion", self.continues_before_deletion())
            .when(
                "continues_after_deletion",
                self.continues && self.locking == Locking::Fail,
            )
            .with("lock_timeout", format_args!("{}ms", LOCK_WAIT.as_millis()))
            .with("jobs", self.bound(Parameter::Jobs))
            .with("step", self.bound(Parameter::Step))
            .with("known_type_ids", self.bound(Parameter::KnownTypeIds))
            .with("known_type_names", self.bound(Parameter::KnownTypeNames))
            .with("item_arrays", arrays.join(", "))
            .with("item_columns", columns.join(", "))
            .with("returned_item_columns", self.returned())
            .with("worker_of_ended", worker);
        fill(TEMPLATE, &filling)
    }
}
