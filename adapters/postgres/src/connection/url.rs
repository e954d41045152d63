//! URLs of servers, which hold passwords: nothing of one is repeated in an error or a log line.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

/// What the driver understands in the query of a URL, besides `options[..]`.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

/// Reads a URL; `None` if it is not one of Postgres. The driver's error is not passed on: it may repeat a part of the URL.
pub(crate) fn read(url: &str) -> Option<PgConnectOptions> {
    // The driver takes any scheme, `localhost` in `localhost:5432/app` too, and connects to somewhere else.
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return None;
    }
    PgConnectOptions::from_str(&understood(url)).ok()
}

/// The URL without the parameters that the driver does not understand: it would log them with their values, and a parameter
/// such as `sslpassword` is a secret.
fn understood(url: &str) -> String {
    let Some((start, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let understood = |parameter: &&str| {
        let key = parameter.split('=').next().unwrap_or_default();
        // Not decoded: what is written in another way is not understood, and left out.
        PARAMETERS.contains(&key) || key.starts_with("options[") || key.starts_with("options%5B")
    };
    let query: Vec<&str> = query.split('&').filter(understood).collect();
    if query.is_empty() {
        start.to_owned()
    } else {
        format!("{start}?{}", query.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_not_understand_is_left_out() {
        let url =
            "postgres://user:secret@host:5433/db?sslmode=disable&channel_binding=require&sslpassword=secret&user=ada";
        assert_eq!(
            understood(url),
            "postgres://user:secret@host:5433/db?sslmode=disable&user=ada"
        );
        let options = read(url).unwrap();
        assert_eq!((options.get_host(), options.get_port()), ("host", 5433));
        assert_eq!((options.get_username(), options.get_database()), ("ada", Some("db")));
        assert_eq!(understood("postgres://host/db?pgbouncer=true"), "postgres://host/db");
        assert!(read("mysql://host/db").is_none());
        assert!(read("postgres://host/db?sslmode=secret").is_none());
    }
}
