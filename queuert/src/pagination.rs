//! Pages and the cursors between them.

use std::fmt;
use std::str::FromStr;

use crate::adapter::Position;
use crate::error::Error;
use crate::id::JobId;

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Where the next page begins; `None` if this is the last one.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// Makes a page from up to `limit + 1` rows: the surplus row only tells that there is a next page.
    pub(crate) fn from_surplus(
        mut rows: Vec<T>,
        limit: usize,
        fingerprint: u64,
        position: impl Fn(&T) -> Position,
    ) -> Self {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = if more { rows.last() } else { None }.map(|row| Cursor {
            fingerprint,
            position: position(row),
        });
        Self { items: rows, next }
    }
}

/// Where the next page begins. Opaque text outside; bound to the filters and the order of its query.
///
/// It holds the place of the last row by value, so rows that are created or deleted meanwhile neither shift pages nor
/// make one miss a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    fingerprint: u64,
    position: Position,
}

impl Cursor {
    /// The position, if the cursor belongs to the query with this fingerprint.
    pub(crate) fn position(&self, fingerprint: u64) -> Result<Position, Error> {
        if self.fingerprint == fingerprint {
            Ok(self.position)
        } else {
            Err(Error::InvalidCursor(
                "it belongs to a query with other filters or another order; start again without a cursor",
            ))
        }
    }
}

const LENGTH: usize = 8 + 8 + 16;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:016x}{:016x}{}",
            self.fingerprint,
            self.position.value,
            self.position.id.as_uuid().simple()
        )
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor({self})")
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        const GARBAGE: Error = Error::InvalidCursor("it is not one that this library made; start again without it");
        if text.len() != 2 * LENGTH || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(GARBAGE);
        }
        let number = |range| u64::from_str_radix(&text[range], 16).map_err(|_| GARBAGE);
        let id: JobId = text[32..].parse().map_err(|_| GARBAGE)?;
        Ok(Self {
            fingerprint: number(0..16)?,
            position: Position {
                value: number(16..32)?.cast_signed(),
                id,
            },
        })
    }
}

/// A stable hash of a query's filters and order (FNV-1a over its debug text), so that a cursor fits across processes.
pub(crate) fn fingerprint(query: &impl fmt::Debug) -> u64 {
    format!("{query:?}").bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The most rows that a page may have.
pub(crate) const MAX_LIMIT: usize = 1_000;

/// Checks the number of rows that a caller asks for.
pub(crate) fn check_limit(limit: usize) -> Result<(), Error> {
    if (1..=MAX_LIMIT).contains(&limit) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "page limit",
        problem: format!("{limit} is not between 1 and {MAX_LIMIT}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor() -> Cursor {
        Cursor {
            fingerprint: u64::MAX - 5,
            position: Position {
                value: -42,
                id: JobId::from_uuid(uuid::Uuid::from_u128(0xabc << 60)),
            },
        }
    }

    #[test]
    fn a_cursor_survives_being_text() {
        assert_eq!(cursor().to_string().parse::<Cursor>().unwrap(), cursor());
    }

    #[test]
    fn garbage_is_refused() {
        let good = cursor().to_string();
        let cut = &good[..good.len() - 1];
        let mangled = good.replace('a', "x");
        let wide = "ä".repeat(LENGTH);
        let signed = format!("+{}", &good[1..]);
        for text in ["", "x", cut, &mangled, &wide, &signed] {
            assert!(matches!(text.parse::<Cursor>(), Err(Error::InvalidCursor(_))), "{text}");
        }
    }

    #[test]
    fn a_cursor_fits_only_its_query() {
        let own = cursor();
        assert!(own.position(own.fingerprint).is_ok());
        assert!(own.position(1).is_err());
    }
}
