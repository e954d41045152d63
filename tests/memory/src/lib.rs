//! Only tests live here: core cannot depend on the conformance kit that depends on it.
