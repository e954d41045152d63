//! W3C trace context as it is stored with a job: the `traceparent`, and behind a space the `tracestate` if there is one.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The context as text; `None` if there is nothing to carry on.
pub(crate) fn write(context: &SpanContext) -> Option<String> {
    if !context.is_valid() {
        return None;
    }
    let sampled = u8::from(context.is_sampled());
    let mut text = format!(
        "00-{:032x}-{:016x}-{sampled:02x}",
        context.trace_id(),
        context.span_id()
    );
    let state = context.trace_state().header();
    if !state.is_empty() {
        text.push(' ');
        text.push_str(&state);
    }
    Some(text)
}

/// The context that was stored, as that of a span elsewhere; `None` if it is not one.
pub(crate) fn read(text: &str) -> Option<SpanContext> {
    let (parent, state) = text.split_once(' ').unwrap_or((text, ""));
    let mut parts = parent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may have more parts, and say the same with these.
    let well_formed =
        version.len() == 2 && version != "ff" && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    if !well_formed || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
        true,
        // A state that cannot be read must not cost the trace.
        state.parse::<TraceState>().unwrap_or_default(),
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_reads_the_same() {
        for text in [
            PARENT.to_owned(),
            PARENT.replace("-01", "-00"),
            format!("{PARENT} a=1,b=two words"),
        ] {
            let context = read(&text).unwrap();
            assert!(context.is_remote());
            assert_eq!(context.is_sampled(), !text.contains("-00 ") && !text.ends_with("-00"));
            assert_eq!(write(&context).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_context_is_ignored() {
        let too_long = format!("{PARENT}-more");
        let nobody = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        for text in [
            "",
            "nonsense",
            "00-1-2-01",
            &too_long,
            nobody,
            &PARENT.replace("00-", "ff-"),
            "ü-ü-ü-ü",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
        assert!(write(&SpanContext::empty_context()).is_none());
        assert!(
            read(&too_long.replacen("00-", "01-", 1)).is_some(),
            "of a later version"
        );
        assert!(read(&format!("{PARENT} ,,=")).is_some(), "with a broken state");
    }
}
