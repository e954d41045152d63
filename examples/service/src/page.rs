//! The pages, as text.

use crate::store::Order;
use crate::web::OrderStatus;

/// The form, and the latest orders.
pub(crate) fn form(orders: &[Order]) -> String {
    let mut rows = String::new();
    for order in orders {
        let progress = match &order.parcel {
            Some(parcel) => format!("shipped as {}", escaped(parcel)),
            None => format!("{} of {} printed", order.printed, order.copies),
        };
        let (id, customer) = (order.id, escaped(&order.customer));
        rows.push_str(&format!(
            "<li><a href=\"/orders/{id}\">{customer}</a>: {progress}</li>\n"
        ));
    }
    page(
        "",
        &format!(
            "<form method=\"post\" action=\"/orders\">\n\
             <label>Name <input name=\"customer\" required></label>\n\
             <label>Copies <input name=\"copies\" type=\"number\" min=\"1\" max=\"1000\" value=\"3\" required></label>\n\
             <button>Print</button>\n\
             </form>\n\
             <ul>\n{rows}</ul>"
        ),
    )
}

/// One order. While it is open, the page loads itself again.
pub(crate) fn order(order: &OrderStatus) -> String {
    let refresh = match order.is_open() {
        true => "<meta http-equiv=\"refresh\" content=\"1\">",
        false => "",
    };
    let parcel = order
        .parcel
        .as_deref()
        .map(|parcel| format!("<p>Parcel {}</p>\n", escaped(parcel)));
    page(
        refresh,
        &format!(
            "<p>Order of {}: <strong>{}</strong>, {} of {} printed</p>\n{}<p><a href=\"/\">Another one</a></p>",
            escaped(&order.customer),
            order.status,
            order.printed,
            order.copies,
            parcel.unwrap_or_default(),
        ),
    )
}

fn page(head: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Print shop</title>{head}</head>\n\
         <body>\n<h1>Print shop</h1>\n{body}\n</body>\n</html>\n"
    )
}

/// Text that a customer wrote, as HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(character),
        }
    }
    escaped
}
