//! Rows as JSON text: one parameter for any number of rows, because one statement with many rows costs less than many
//! statements.

use std::fmt::Write as _;

use uuid::Uuid;

/// Builds a JSON array, of arrays or of scalars.
#[derive(Debug)]
pub(crate) struct JsonRows {
    text: String,
    rows: usize,
    fields: usize,
}

impl JsonRows {
    pub(crate) fn new() -> Self {
        Self {
            text: String::from("["),
            rows: 0,
            fields: 0,
        }
    }

    /// A list of ids, as hexadecimal text.
    pub(crate) fn of_ids(ids: impl IntoIterator<Item = Uuid>) -> String {
        let mut rows = Self::new();
        for id in ids {
            rows.comma();
            rows.hex(id.as_bytes());
        }
        rows.finish()
    }

    /// A list of texts.
    pub(crate) fn of_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
        let mut rows = Self::new();
        for text in texts {
            rows.comma();
            rows.quote(text);
        }
        rows.finish()
    }

    /// A list of numbers.
    pub(crate) fn of_numbers(numbers: impl IntoIterator<Item = i64>) -> String {
        let mut rows = Self::new();
        for number in numbers {
            rows.comma();
            let _ = write!(rows.text, "{number}");
        }
        rows.finish()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, fill: impl FnOnce(&mut Self)) {
        self.comma();
        self.text.push('[');
        self.fields = 0;
        fill(self);
        self.text.push(']');
    }

    pub(crate) fn number(&mut self, number: impl Into<i64>) -> &mut Self {
        self.field();
        let _ = write!(self.text, "{}", number.into());
        self
    }

    pub(crate) fn optional_number(&mut self, number: Option<i64>) -> &mut Self {
        match number {
            Some(number) => self.number(number),
            None => self.null(),
        }
    }

    pub(crate) fn id(&mut self, id: Uuid) -> &mut Self {
        self.field();
        self.hex(id.as_bytes());
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.field();
        self.quote(text);
        self
    }

    /// Text that must keep every byte, as hexadecimal text.
    pub(crate) fn exact_text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => {
                self.field();
                self.hex(text.as_bytes());
                self
            }
            None => self.null(),
        }
    }

    /// A nested array that is JSON text already.
    pub(crate) fn raw(&mut self, json: &str) -> &mut Self {
        self.field();
        self.text.push_str(json);
        self
    }

    pub(crate) fn finish(mut self) -> String {
        self.text.push(']');
        self.text
    }

    pub(crate) fn null(&mut self) -> &mut Self {
        self.field();
        self.text.push_str("null");
        self
    }

    fn comma(&mut self) {
        if self.rows > 0 {
            self.text.push(',');
        }
        self.rows += 1;
    }

    fn field(&mut self) {
        if self.fields > 0 {
            self.text.push(',');
        }
        self.fields += 1;
    }

    fn hex(&mut self, bytes: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.text.push('"');
        for byte in bytes {
            self.text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            self.text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        self.text.push('"');
    }

    fn quote(&mut self, text: &str) {
        self.text.push('"');
        let mut from = 0;
        for (at, byte) in text.bytes().enumerate() {
            if byte >= 0x20 && byte != b'"' && byte != b'\\' {
                continue;
            }
            self.text.push_str(&text[from..at]);
            from = at + 1;
            match byte {
                b'"' => self.text.push_str("\\\""),
                b'\\' => self.text.push_str("\\\\"),
                // SQLite ends a text at a zero byte. Neither JSON nor a name contains one.
                0 => self.text.push('\u{FFFD}'),
                _ => {
                    let _ = write!(self.text, "\\u{byte:04x}");
                }
            }
        }
        self.text.push_str(&text[from..]);
        self.text.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_json() {
        let mut rows = JsonRows::new();
        rows.row(|row| {
            row.number(1).text("a\"b\\c\n\u{1}ü").raw("null");
            row.id(Uuid::from_u128(255)).exact_text(Some("k\0"));
        });
        rows.row(|row| {
            row.raw("null").raw("[1,2]");
        });
        let text = rows.finish();
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!([
            [1, "a\"b\\c\n\u{1}ü", null, "000000000000000000000000000000ff", "6b00"],
            [null, [1, 2]]
        ]);
        assert_eq!(parsed, expected);
        assert_eq!(JsonRows::of_numbers([1, -2]), "[1,-2]");
        assert_eq!(JsonRows::of_texts(["x", "y"]), "[\"x\",\"y\"]");
    }
}
