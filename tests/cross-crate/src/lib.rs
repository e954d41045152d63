//! Tests of queuert as users see it: from other crates. They are in `tests/`, those that must not compile in
//! `../ui/`.
