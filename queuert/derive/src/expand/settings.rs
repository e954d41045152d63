//! The `SETTINGS` of a job type.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::attribute::Settings;

pub(super) fn settings(queuert: &TokenStream, settings: &Settings) -> TokenStream {
    let mut code = quote!(#queuert::JobSettings::new());
    if let Some(retry) = &settings.retry {
        let mut policy = quote!(#queuert::RetryPolicy::new());
        if let Some(attempts) = &retry.max_attempts {
            let attempts = attempts.code(|attempts| quote!(#attempts));
            policy.extend(quote!(.max_attempts(#attempts)));
        }
        for (setter, delay) in [("initial", &retry.initial), ("maximum", &retry.maximum)] {
            if let Some(delay) = delay {
                let (setter, delay) = (format_ident!("{setter}"), delay.code(duration));
                policy.extend(quote!(.#setter(#delay)));
            }
        }
        for (setter, number) in [("multiplier", &retry.multiplier), ("jitter", &retry.jitter)] {
            if let Some(number) = number {
                let (setter, number) = (format_ident!("{setter}"), number.code(|number| quote!(#number)));
                policy.extend(quote!(.#setter(#number)));
            }
        }
        code.extend(quote!(.retry(#policy)));
    }
    if let Some(lease) = &settings.lease {
        let mut settings = match &lease.duration {
            Some(lasts) => {
                let lasts = lasts.code(duration);
                quote!(#queuert::LeaseSettings::new(#lasts))
            }
            None => quote!(#queuert::LeaseSettings::DEFAULT),
        };
        if let Some(renewal) = &lease.renew_every {
            let renewal = renewal.code(duration);
            settings.extend(quote!(.renew_every(#renewal)));
        }
        code.extend(quote!(.lease(#settings)));
    }
    if let Some(timeout) = &settings.timeout {
        let timeout = timeout.code(duration);
        code.extend(quote!(.timeout(#timeout)));
    }
    if let Some(priority) = &settings.priority {
        let priority = priority.code(|priority| quote!(#priority));
        code.extend(quote!(.priority(#priority)));
    }
    code
}

fn duration(value: Duration) -> TokenStream {
    let (seconds, nanoseconds) = (value.as_secs(), value.subsec_nanos());
    quote!(::std::time::Duration::new(#seconds, #nanoseconds))
}
