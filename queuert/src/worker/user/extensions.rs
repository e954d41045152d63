//! Typed values that processors read: those that the worker provides, and those that middlewares add.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// Values by their type, each with the name of the type. A clone is cheap until a value is inserted into it.
#[derive(Clone, Default)]
pub(crate) struct Extensions(Arc<HashMap<TypeId, (&'static str, Value)>>);

type Value = Arc<dyn Any + Send + Sync>;

impl Extensions {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        Arc::make_mut(&mut self.0).insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(value)));
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, Error> {
        self.0
            .get(&TypeId::of::<T>())
            .and_then(|(_, value)| Arc::clone(value).downcast().ok())
            .ok_or_else(|| self.missing(type_name::<T>()))
    }

    /// The error names the types that there are: often the value is there behind another pointer.
    fn missing(&self, wanted: &'static str) -> Error {
        let mut provided: Vec<_> = self.0.values().map(|(name, _)| *name).collect();
        provided.sort_unstable();
        Error::MissingValue { wanted, provided }
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserting_leaves_clones_alone() {
        let mut outer = Extensions::default();
        outer.insert(1_u32);
        let mut inner = outer.clone();
        inner.insert(2_u32);
        inner.insert("text");
        assert_eq!(*outer.get::<u32>().unwrap(), 1);
        assert_eq!(*inner.get::<u32>().unwrap(), 2);
        let missing = outer.get::<&str>().unwrap_err();
        assert!(matches!(missing, Error::MissingValue { wanted: "&str", provided } if provided == ["u32"]));
    }
}
