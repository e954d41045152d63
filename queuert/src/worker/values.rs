//! Typed values that processors read: what the worker provides, and what middlewares add.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// Values by type. Cloning is cheap until something is inserted.
#[derive(Clone, Default)]
pub(crate) struct Values(Arc<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Values {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        Arc::make_mut(&mut self.0).insert(TypeId::of::<T>(), Arc::new(value));
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, Error> {
        self.0
            .get(&TypeId::of::<T>())
            .and_then(|value| Arc::clone(value).downcast().ok())
            .ok_or(Error::MissingValue(type_name::<T>()))
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserting_leaves_clones_alone() {
        let mut outer = Values::default();
        outer.insert(1_u32);
        let mut inner = outer.clone();
        inner.insert(2_u32);
        inner.insert("text");
        assert_eq!(*outer.get::<u32>().unwrap(), 1);
        assert_eq!(*inner.get::<u32>().unwrap(), 2);
        assert!(matches!(outer.get::<&str>(), Err(Error::MissingValue(name)) if name.contains("str")));
    }
}
