//! Pages and the cursors between them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use uuid::Uuid;

use crate::adapter::Position;
use crate::error::Error;
use crate::id::JobId;
use crate::time::Timestamp;

/// A page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Where the next page begins; `None` if this is the last page. A program that continues later from where it
    /// stopped needs a cursor after the last page too, and gets one from [`follow`](crate::request::Request::follow).
    pub next: Option<Cursor>,
}

/// A page of a list that is [followed](crate::request::Request::follow).
#[derive(Clone, Debug)]
pub struct FollowedPage<T> {
    /// The rows, in the order of their creation. Empty if there is nothing new before the watermark.
    pub items: Vec<T>,
    /// Where the next page begins, also after an empty page. Store it once the rows are handled, and continue from it.
    pub next: Cursor,
    /// No more rows can appear that were created before this time; this page, and the following ones up to an empty
    /// one, contain all of them. Where transactions write at the same time (Postgres, memory), a watermark that stays
    /// behind the store's clock means that a transaction has written and is still open. On SQLite it is just behind the
    /// newest job.
    pub watermark: Timestamp,
}

impl<T> FollowedPage<T> {
    /// Makes a page from up to `limit + 1` rows that lie between the cursor and the watermark. Behind a full page the next
    /// cursor is at its last row; otherwise all rows before the watermark are read, and the next cursor is at the watermark.
    pub(crate) fn from_surplus(
        mut rows: Vec<T>,
        limit: usize,
        range: &FollowRange,
        position: impl Fn(&T) -> Position,
    ) -> Self {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let place = match rows.last() {
            Some(last) if more => position(last),
            _ => range.end(),
        };
        Self {
            items: rows,
            next: Cursor {
                fingerprint: range.fingerprint,
                position: place,
            },
            watermark: range.watermark,
        }
    }
}

/// The rows that a follower may read: behind its cursor, and before the watermark.
#[derive(Debug)]
pub(crate) struct FollowRange {
    fingerprint: u64,
    from: Option<Position>,
    watermark: Timestamp,
}

impl FollowRange {
    /// The rows of the query with this fingerprint that lie behind a position, and before the watermark.
    pub(crate) fn new(fingerprint: u64, from: Option<Position>, watermark: Timestamp) -> Self {
        Self {
            fingerprint,
            from,
            watermark,
        }
    }

    /// Where the page before ended.
    pub(crate) fn from(&self) -> Option<Position> {
        self.from
    }

    /// The last time before the watermark.
    pub(crate) fn last(&self) -> Timestamp {
        self.watermark.saturating_sub(Duration::from_micros(1))
    }

    /// Behind every row before the watermark, and before every other row. Never before the cursor: a store may give an earlier
    /// watermark than the last time, and no row can appear before either.
    fn end(&self) -> Position {
        let last = Position {
            value: self.last().as_micros(),
            id: JobId::from_uuid(Uuid::max()),
        };
        self.from.map_or(last, |from| from.max(last))
    }

    /// Whether nothing can lie between the cursor and the end.
    pub(crate) fn is_empty(&self) -> bool {
        self.from == Some(self.end())
    }
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

/// Where the next page begins. As text it is opaque; it belongs to the filters and the order of its query.
///
/// It contains the position of the last row by value, so rows that are created or deleted between two pages do not
/// shift them: no row is returned twice, and every row that existed when the first page was read, and is not deleted,
/// is returned once.
///
/// New rows may be missed. In the order newest first, they lie before the first page. In the order oldest first, most
/// of them lie after the cursor, but not all: rows are sorted by the time at which they were created, and become
/// visible when their transaction commits. A row of a transaction that commits late lies before a cursor that has
/// passed its time, and no later page has it. A program that must miss nothing
/// [follows](crate::request::Request::follow) the list: the cursor of a follower never passes a time at which an open
/// transaction may have created a row.
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

    /// A row is its position.
    fn followed(rows: Vec<Position>, from: Option<Position>, before: i64) -> FollowedPage<Position> {
        let range = FollowRange::new(7, from, Timestamp::from_micros(before));
        FollowedPage::from_surplus(rows, 2, &range, |row| *row)
    }

    fn row(value: i64, id: u128) -> Position {
        let id = JobId::from_uuid(Uuid::from_u128(id));
        Position { value, id }
    }

    #[test]
    fn behind_a_full_page_a_follower_goes_on_from_its_last_row() {
        let page = followed(vec![row(1, 5), row(1, 6), row(2, 1)], None, 9);
        assert_eq!((page.items.len(), page.next.position), (2, row(1, 6)));
    }

    #[test]
    fn behind_the_last_page_a_follower_goes_on_from_the_watermark() {
        for rows in [vec![], vec![row(1, 5), row(8, u128::MAX - 1)]] {
            let next = followed(rows, None, 9).next.position;
            assert!(row(8, u128::MAX - 1) < next && next < row(9, 0), "{next:?}");
        }
    }

    #[test]
    fn a_follower_never_goes_back() {
        let from = row(20, 4);
        let page = followed(vec![], Some(from), 9);
        assert_eq!(page.next.position, from);
        assert!(FollowRange::new(7, Some(from), Timestamp::from_micros(9)).is_empty());
        assert!(!FollowRange::new(7, Some(row(8, 4)), Timestamp::from_micros(9)).is_empty());
    }

    #[test]
    fn a_cursor_fits_only_its_query() {
        let own = cursor();
        assert!(own.position(own.fingerprint).is_ok());
        assert!(own.position(1).is_err());
    }
}
