//! Drives the real processes over HTTP, on both databases: answers, links, the form, processes that are killed in the
//! middle of a job, and processes that are told to stop.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod shop;

use std::time::Duration;

use reqwest::header::LOCATION;
use reqwest::{Client, Response, StatusCode, redirect};
use serde_json::{Value, json};
use shop::{LONG, Server, Shop};

macro_rules! on_both {
    ($($test:ident)+) => {
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Shop::on_postgres().await).await;
            })+
        }

        mod sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Shop::on_sqlite()).await;
            })+
        }
    };
}

on_both! {
    an_order_is_answered_when_it_is_done
    an_order_that_takes_longer_is_answered_with_a_link
    the_form_leads_to_a_page_of_the_order
    what_a_killed_process_was_at_is_done_by_another
    processes_that_are_told_to_stop_finish_what_they_are_at
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn http() -> Client {
    Client::builder()
        .redirect(redirect::Policy::none())
        .timeout(LONG)
        .build()
        .unwrap()
}

async fn order(server: &Server, customer: &str, copies: i64) -> Response {
    let request = http().post(server.at("/api/orders")).header("traceparent", TRACE);
    request
        .json(&json!({ "customer": customer, "copies": copies }))
        .send()
        .await
        .unwrap()
}

async fn get(server: &Server, path: &str) -> Value {
    let response = http().get(server.at(path)).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.json().await.unwrap()
}

fn location(response: &Response) -> String {
    response.headers()[LOCATION].to_str().unwrap().to_owned()
}

/// Asks at the link until the order is no longer open.
async fn ended(server: &Server, link: &str) -> Value {
    let asked = async {
        loop {
            let order = get(server, link).await;
            if order["status"] != "open" {
                return order;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, asked).await.unwrap()
}

/// Every copy once, in one parcel.
fn assert_shipped(order: &Value, copies: i64) {
    assert_eq!(order["status"], "shipped", "{order}");
    assert_eq!(order["printed"], copies, "{order}");
    assert!(order["parcel"].as_str().unwrap().starts_with("P-"), "{order}");
}

async fn an_order_is_answered_when_it_is_done(shop: Shop) {
    let server = shop.serve("--print-ms 10 --patience-ms 90000 --paper 100").await;
    let response = order(&server, "Ada", 3).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let link = location(&response);
    let answer: Value = response.json().await.unwrap();
    assert_shipped(&answer, 3);
    assert_eq!(get(&server, &link).await, answer);

    let response = order(&server, "Grace", 98).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(
        (&answer["status"], &answer["printed"]),
        (&json!("out of paper"), &json!(0))
    );
    let response = order(&server, "Grace", 97).await;
    assert_eq!(response.status(), StatusCode::CREATED, "no sheet was taken for nothing");

    assert_eq!(
        order(&server, "Bob", 0).await.status(),
        StatusCode::UNPROCESSABLE_ENTITY
    );
    for id in ["nothing", "01890a5d-ac96-774b-bcce-b302099a8057"] {
        let response = http()
            .get(server.at(&format!("/api/orders/{id}")))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
    }
    let page = http().get(server.at("/")).send().await.unwrap().text().await.unwrap();
    assert_eq!(page.matches("<li>").count(), 3, "what was refused is not there: {page}");
}

async fn an_order_that_takes_longer_is_answered_with_a_link(shop: Shop) {
    let server = shop.serve("--workers 2 --print-ms 50 --patience-ms 100").await;
    let _second = shop.work("--workers 2 --print-ms 50");
    let response = order(&server, "Ada", 12).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let link = location(&response);
    let answer: Value = response.json().await.unwrap();
    assert_eq!((&answer["status"], &answer["link"]), (&json!("open"), &json!(link)));
    assert_shipped(&ended(&server, &link).await, 12);
}

async fn the_form_leads_to_a_page_of_the_order(shop: Shop) {
    let server = shop.serve("--workers 0 --patience-ms 1").await;
    let http = http();
    let page = http.get(server.at("/")).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("<form method=\"post\" action=\"/orders\">"), "{page}");

    let form = [("customer", "<Ada & Co>"), ("copies", "2")];
    let response = http.post(server.at("/orders")).form(&form).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    let own_page = server.at(&location(&response));
    let page = http.get(&own_page).send().await.unwrap().text().await.unwrap();
    assert!(
        page.contains("&lt;Ada &amp; Co&gt;") && !page.contains("<Ada"),
        "{page}"
    );
    assert!(page.contains("<strong>open</strong>, 0 of 2 printed"), "{page}");
    assert!(
        page.contains("http-equiv=\"refresh\""),
        "it looks again by itself: {page}"
    );

    let _worker = shop.work("--print-ms 10");
    let id = own_page.rsplit('/').next().unwrap();
    ended(&server, &format!("/api/orders/{id}")).await;
    let page = http.get(&own_page).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("<strong>shipped</strong>, 2 of 2 printed"), "{page}");
    assert!(!page.contains("refresh"), "there is nothing to wait for: {page}");
    let page = http.get(server.at("/")).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("shipped as P-"), "{page}");
}

async fn what_a_killed_process_was_at_is_done_by_another(shop: Shop) {
    let server = shop.serve("--workers 0 --patience-ms 1").await;
    let mut first = shop.work("--workers 2 --lease-ms 2000 --print-ms 3600000"); // so it is killed in the middle
    let response = order(&server, "Ada", 4).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let link = location(&response);
    first.logs("copy=1 ").await;

    let second = shop.work("--workers 2 --lease-ms 2000 --print-ms 50");
    second.logs("works as").await;
    first.kill().await;
    assert_shipped(&ended(&server, &link).await, 4);
    second.logs("taken from a worker that went silent").await;
    let again = second.logs("attempt=2").await;
    assert!(again.contains("job=print"), "{again}");
    // The trace of the request is that of its jobs, in whichever process.
    for log in [first.log(), second.log()] {
        let attempts = log.iter().filter(|line| line.contains("attempt{"));
        assert!(attempts.clone().count() > 0, "{log:#?}");
        for line in attempts {
            assert!(line.contains(TRACE), "{line}");
        }
    }
}

async fn processes_that_are_told_to_stop_finish_what_they_are_at(shop: Shop) {
    let mut server = shop.serve("--workers 1 --print-ms 200 --patience-ms 90000").await;
    let asked = async {
        let response = order(&server, "Ada", 3).await;
        (response.status(), response.json::<Value>().await.unwrap())
    };
    let told = async {
        server.process.logs("copy=1 ").await;
        server.process.terminate().await;
    };
    let ((status, answer), ()) = tokio::join!(asked, told);
    assert_eq!(status, StatusCode::CREATED, "who had asked was answered");
    assert_shipped(&answer, 3);
    server.process.ends_well().await;

    let server = shop.serve("--workers 0 --patience-ms 1").await;
    let mut first = shop.work("--workers 1 --print-ms 500");
    let link = location(&order(&server, "Grace", 3).await);
    first.logs("copy=1 ").await;
    first.terminate().await;
    first.ends_well().await;
    let done = first
        .log()
        .iter()
        .filter(|line| line.contains("job=print") && line.contains(": continues "))
        .count();
    assert!(done > 0, "what it was at is done: {:#?}", first.log());
    assert_eq!(get(&server, &link).await["printed"], done);

    let mut second = shop.work("--workers 1 --print-ms 50");
    assert_shipped(&ended(&server, &link).await, 3);
    second.terminate().await;
    second.ends_well().await;
    let log = [first.log(), second.log()].concat();
    assert!(
        !log.iter().any(|line| line.contains("attempt=2")),
        "no attempt was spent: {log:#?}"
    );
}
