//! What the jobs of all sides carry.

use serde::{Deserialize, Serialize};

/// The input of a job, about 150 bytes of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Letter {
    /// Counts the letters.
    pub number: u64,
    /// To whom.
    pub address: String,
    /// With which words.
    pub template: String,
    /// In which language.
    pub locale: String,
    /// Something more.
    pub note: String,
}

impl Letter {
    /// A letter of the usual size.
    pub fn new(number: u64) -> Self {
        Self {
            number,
            address: format!("member.{number:06}@mail.example.com"),
            template: "welcome-to-the-service".to_owned(),
            locale: "en-GB".to_owned(),
            note: "the third of five letters".to_owned(),
        }
    }
}

/// The output of a job, about 50 bytes of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Names the message.
    pub message: String,
    /// Whether it was taken.
    pub accepted: bool,
}

impl Receipt {
    /// What the no-op processor of every side answers with.
    pub fn of(letter: &Letter) -> Self {
        Self {
            message: format!("message-{:012}", letter.number),
            accepted: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payloads_have_the_promised_size() {
        let letter = Letter::new(99_999);
        let input = serde_json::to_string(&letter).unwrap();
        let output = serde_json::to_string(&Receipt::of(&letter)).unwrap();
        assert!((140..=160).contains(&input.len()), "{input}: {}", input.len());
        assert!((45..=55).contains(&output.len()), "{output}: {}", output.len());
    }
}
