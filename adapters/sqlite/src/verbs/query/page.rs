//! The statement of a page: conditions with their parameters.

use queuert::adapter::{Order, Position};
use queuert::{JobStatus, TypeName};
use uuid::Uuid;

use crate::connection::{Query, Value};
use crate::row::status_number;
use crate::statements::json_rows::JsonRows;
use crate::statements::without_comments;
use crate::store::{Store, count};

/// Conditions and parameters, numbered in the order in which they are added.
#[derive(Debug, Default)]
pub(super) struct Page {
    conditions: Vec<String>,
    parameters: Vec<Value<'static>>,
}

impl Page {
    /// Adds a parameter, and returns how the text names it.
    pub(super) fn parameter(&mut self, parameter: impl Into<Value<'static>>) -> String {
        self.parameters.push(parameter.into());
        format!("?{}", self.parameters.len())
    }

    pub(super) fn only(&mut self, condition: impl Into<String>) {
        self.conditions.push(without_comments(&condition.into()));
    }

    /// Adds a condition from a file, with a parameter in the place of the placeholder.
    pub(super) fn only_with(&mut self, text: &str, placeholder: &str, parameter: impl Into<Value<'static>>) {
        let parameter = self.parameter(parameter);
        self.only(without_comments(text).replace(placeholder, &parameter));
    }

    pub(super) fn any_id(&mut self, column: &str, ids: impl IntoIterator<Item = Uuid>) {
        let list = self.parameter(JsonRows::of_ids(ids));
        self.only(format!("{column} IN (SELECT unhex(value) FROM json_each({list}))"));
    }

    pub(super) fn any_type(&mut self, column: &str, types: &[TypeName]) {
        let list = self.parameter(JsonRows::of_texts(types.iter().map(TypeName::as_str)));
        self.only(format!("{column} IN (SELECT value FROM json_each({list}))"));
    }

    pub(super) fn any_status(&mut self, column: &str, statuses: &[JobStatus]) {
        let numbers = statuses.iter().map(|status| status_number(*status));
        let list = self.parameter(JsonRows::of_numbers(numbers));
        self.only(format!("{column} IN (SELECT value FROM json_each({list}))"));
    }

    pub(super) fn bound(&mut self, column: &str, operator: &str, number: i64) {
        let bound = self.parameter(number);
        self.only(format!("{column} {operator} {bound}"));
    }

    /// Only rows after a position. An index can use the first condition; the second one is exact.
    pub(super) fn after(&mut self, value: &str, id: &str, order: Order, after: Option<Position>) {
        let Some(position) = after else {
            return;
        };
        let strictly = match order {
            Order::OldestFirst => ">",
            Order::NewestFirst => "<",
        };
        let last = self.parameter(position.value);
        let last_id = self.parameter(position.id.as_uuid());
        self.only(format!("{value} {strictly}= {last}"));
        self.only(format!("({value} {strictly} {last} OR {id} {strictly} {last_id})"));
    }

    /// The statement, from a text with the placeholders of `list_jobs.sql`. `index` is the name of an index after its
    /// prefix.
    pub(super) fn finish(
        mut self,
        store: &Store,
        text: &str,
        index: Option<&str>,
        value: &str,
        order: Order,
        limit: usize,
    ) -> Query<'static> {
        let direction = match order {
            Order::OldestFirst => "ASC",
            Order::NewestFirst => "DESC",
        };
        let limit = self.parameter(count(limit));
        let conditions = if self.conditions.is_empty() {
            "true".to_owned()
        } else {
            self.conditions.join(" AND ")
        };
        let index = index.map_or(String::new(), |index| format!(" INDEXED BY {{prefix}}{index}"));
        let text = without_comments(text)
            .replace("{index}", &index)
            .replace("{conditions}", &conditions)
            .replace("{value}", value)
            .replace("{direction}", direction)
            .replace("{limit}", &limit);
        Query::new(&store.statements.filled(&text), self.parameters)
    }
}
