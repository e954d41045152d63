//! The derive macro of queuert.

/// Derives.
#[proc_macro_derive(JobTypes, attributes(job))]
pub fn derive_job_types(_: proc_macro::TokenStream) -> proc_macro::TokenStream {
    proc_macro::TokenStream::new()
}
