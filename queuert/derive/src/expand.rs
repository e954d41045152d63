//! Writes the implementations.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::{Index, Type};

use crate::attribute::{Blockers, Output, Settings};
use crate::check::{attempt_name, ends, output_name, share_one_type};
use crate::naming::{mentions, type_text};
use crate::parse::{Types, Variant};
use crate::reach::Graph;

/// The implementations for a model. With `permissive` there are mistakes, which have been reported: the job types are
/// then given every relation that can be given, so that code which uses them is not reported as well.
pub(crate) fn expand(types: &Types, graph: &Graph, permissive: bool) -> TokenStream {
    let expansion = Expansion {
        types,
        graph,
        permissive,
        queuert: &types.queuert,
        state: free_name(types),
    };
    let job_types = expansion.each(|index, variant, input| expansion.job_type(index, variant, input));
    if types.generic {
        return job_types;
    }
    let attempts = expansion.attempts();
    let implementation = expansion.job_types();
    let uses = expansion.uses();
    quote!(#job_types #attempts #implementation #uses)
}

struct Expansion<'a> {
    types: &'a Types,
    graph: &'a Graph,
    permissive: bool,
    queuert: &'a TokenStream,
    /// The name of the type parameter for the state adapter.
    state: Ident,
}

/// A name for a type parameter that hides no type of the user's.
fn free_name(types: &Types) -> Ident {
    let taken = |name: &str| {
        let input = |variant: &Variant| variant.input.as_ref().is_some_and(|ty| mentions(ty, name));
        types.ident == name || types.variants.iter().any(input)
    };
    let mut name = String::from("S");
    while taken(&name) {
        name.push('_');
    }
    Ident::new(&name, Span::call_site())
}

impl Expansion<'_> {
    /// For each variant that has an input.
    fn each(&self, mut write: impl FnMut(usize, &Variant, &Type) -> TokenStream) -> TokenStream {
        self.types
            .variants
            .iter()
            .enumerate()
            .filter_map(|(index, variant)| Some(write(index, variant, variant.input.as_ref()?)))
            .collect()
    }

    fn job_type(&self, index: usize, variant: &Variant, input: &Type) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let name = &variant.name.value;
        let owner = match types.generic {
            true => quote!(#queuert::__private::NoTypes),
            false => types.ident.to_token_stream(),
        };
        let defaults = defaults(queuert, &variant.settings);
        let blockers = self.blocker_spec(&variant.settings.blockers);
        let relations = self.relations(variant, input);
        let entry = match variant.settings.entry || self.permissive {
            true => self.entry(index, variant, input),
            false => TokenStream::new(),
        };
        quote! {
            #[automatically_derived]
            impl #queuert::JobType for #input {
                type Types = #owner;
                type Blockers = #blockers;
                const NAME: &'static str = #name;
                const DEFAULTS: #queuert::JobDefaults = #defaults;
            }
            #entry
            #relations
        }
    }

    /// The traits that relate the job type to others.
    fn relations(&self, variant: &Variant, input: &Type) -> TokenStream {
        let queuert = self.queuert;
        let settings = &variant.settings;
        let mut code = TokenStream::new();
        if let Output::Type(output) = &settings.output {
            code.extend(quote! {
                #[automatically_derived]
                impl #queuert::OutputOf<#input> for #output {}
            });
        }
        code.extend(self.blockers_of(&settings.blockers, input));
        if self.permissive {
            code.extend(quote! {
                #[automatically_derived]
                impl<Previous: #queuert::JobType> #queuert::ContinuationOf<Previous> for #input {}
                #[automatically_derived]
                impl #queuert::Unblocked for #input {}
                #[automatically_derived]
                impl<Kind> #queuert::WaitsFor<Kind> for #input {}
            });
            return code;
        }
        let position = self.types.position(&variant.ident);
        for next in position
            .map(|index| self.graph.next[index].as_slice())
            .unwrap_or_default()
        {
            let next = &self.types.variants[*next].input;
            code.extend(quote! {
                #[automatically_derived]
                impl #queuert::ContinuationOf<#input> for #next {}
            });
        }
        code.extend(match settings.blockers {
            Blockers::None | Blockers::Unreadable => quote! {
                #[automatically_derived]
                impl #queuert::Unblocked for #input {}
            },
            _ => {
                let kind = self.blocker_spec(&settings.blockers);
                quote! {
                    #[automatically_derived]
                    impl #queuert::WaitsFor<#kind> for #input {}
                }
            }
        });
        code
    }

    /// The entry type that a name in `blockers = ..` stands for.
    fn blocker<'b>(&'b self, ty: &'b Type) -> &'b Type {
        let variant = self.types.named_by(ty).map(|index| &self.types.variants[index]);
        variant.and_then(|variant| variant.input.as_ref()).unwrap_or(ty)
    }

    fn blocker_spec(&self, blockers: &Blockers) -> TokenStream {
        let queuert = self.queuert;
        match blockers {
            Blockers::None | Blockers::Unreadable => quote!(()),
            Blockers::One(ty) => {
                let ty = self.blocker(ty);
                quote!(#queuert::One<#ty>)
            }
            Blockers::Each(types) => {
                let types = types.iter().map(|ty| self.blocker(ty));
                quote!((#(#types),*))
            }
            Blockers::Any(ty) => {
                let ty = self.blocker(ty);
                quote!(#queuert::Many<#ty>)
            }
        }
    }

    /// `BlockerOf`, once for each distinct entry type.
    fn blockers_of(&self, blockers: &Blockers, input: &Type) -> TokenStream {
        let queuert = self.queuert;
        let mut distinct: Vec<(&Type, Vec<Index>)> = Vec::new();
        for (place, ty) in blockers.types().iter().enumerate() {
            let ty = self.blocker(ty);
            match distinct.iter_mut().find(|(other, _)| type_text(other) == type_text(ty)) {
                Some((_, places)) => places.push(Index::from(place)),
                None => distinct.push((ty, vec![Index::from(place)])),
            }
        }
        distinct
            .into_iter()
            .map(|(ty, places)| {
                let outputs = match blockers {
                    Blockers::Each(_) => quote!(::std::vec![#(&blockers.#places),*]),
                    Blockers::Any(_) => quote!(::std::iter::Iterator::collect(<[_]>::iter(blockers))),
                    _ => quote!(::std::vec![blockers]),
                };
                quote! {
                    #[automatically_derived]
                    impl #queuert::BlockerOf<#input> for #ty {
                        fn outputs(
                            blockers: &<<#input as #queuert::JobType>::Blockers as #queuert::BlockerSpec>::Outputs,
                        ) -> ::std::vec::Vec<&<Self as #queuert::Entry>::Output> {
                            #outputs
                        }
                    }
                }
            })
            .collect()
    }

    fn entry(&self, index: usize, variant: &Variant, input: &Type) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let ends = ends(types, self.graph, index);
        let shared = share_one_type(&ends);
        let output_name = output_name(variant);
        let output = match ends.first() {
            // Only after a mistake.
            None => quote!(()),
            Some((_, ty)) if shared => ty.to_token_stream(),
            Some(_) => output_name.to_token_stream(),
        };
        let names: Vec<_> = ends.iter().map(|(end, _)| &types.variants[*end].name.value).collect();
        let arms = if shared {
            ends.first().map(|(end, ty)| {
                let finished_by = &types.variants[*end].input;
                quote!(#(#names)|* => #queuert::__private::decode_output::<#finished_by, #ty>(output),)
            })
        } else {
            let arms = ends.iter().zip(&names).map(|((end, ty), name)| {
                let Variant { ident, input, .. } = &types.variants[*end];
                quote! {
                    #name => #queuert::__private::decode_output::<#input, #ty>(output).map(#output_name::#ident),
                }
            });
            Some(arms.collect())
        };
        let output_enum = match shared {
            true => TokenStream::new(),
            false => self.output_enum(variant, &ends),
        };
        quote! {
            #[automatically_derived]
            impl #queuert::Entry for #input {
                type Output = #output;

                fn decode_output(
                    finished_by: &str,
                    output: &#queuert::Payload,
                ) -> ::std::result::Result<Self::Output, #queuert::PayloadError> {
                    match finished_by {
                        #arms
                        _ => ::std::result::Result::Err(
                            #queuert::__private::no_such_end::<Self>(finished_by, &[#(#names),*]),
                        ),
                    }
                }
            }
            #output_enum
        }
    }

    fn output_enum(&self, variant: &Variant, ends: &[(usize, &Type)]) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let visibility = &types.visibility;
        let name = output_name(variant);
        let text = name.to_string();
        let summary = format!(
            "What a chain of `{}` gives, depending on the job that finished it.",
            variant.name.value
        );
        let idents: Vec<_> = ends.iter().map(|(end, _)| &types.variants[*end].ident).collect();
        let outputs = ends.iter().map(|(_, ty)| ty);
        let docs = ends
            .iter()
            .map(|(end, _)| format!("Finished by a `{}`.", types.variants[*end].name.value));
        quote! {
            #[doc = #summary]
            #[allow(dead_code, reason = "an output that nobody reads is no mistake")]
            #visibility enum #name {
                #(#[doc = #docs] #idents(#outputs),)*
            }

            #[automatically_derived]
            impl ::std::fmt::Debug for #name {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    use #queuert::__private::debug::*;
                    let (variant, value) = match self {
                        #(Self::#idents(value) => (::std::stringify!(#idents), (&Probe(value)).shown()),)*
                    };
                    write(f, #text, variant, value)
                }
            }
        }
    }

    /// The enum of attempts.
    fn attempts(&self) -> TokenStream {
        let Self {
            types, queuert, state, ..
        } = self;
        let visibility = &types.visibility;
        let name = attempt_name(types);
        let text = name.to_string();
        let summary = format!("An attempt of a job of `{}`, to match exhaustively.", types.ident);
        let variants = self.each(|_, variant, input| {
            let ident = &variant.ident;
            let doc = format!("Of a `{}`.", variant.name.value);
            quote!(#[doc = #doc] #ident(#queuert::Attempt<#input, #state>),)
        });
        let arms = self.each(|_, variant, _| {
            let ident = &variant.ident;
            quote!(Self::#ident(attempt) => (::std::stringify!(#ident), (&Probe(attempt)).shown()),)
        });
        if variants.is_empty() {
            return TokenStream::new();
        }
        quote! {
            #[doc = #summary]
            #[allow(dead_code, reason = "made whether or not the job types are processed by one `match`")]
            #visibility enum #name<#state: #queuert::adapter::StateAdapter> {
                #variants
            }

            #[automatically_derived]
            impl<#state: #queuert::adapter::StateAdapter> ::std::fmt::Debug for #name<#state> {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    use #queuert::__private::debug::*;
                    let (variant, value) = match self {
                        #arms
                    };
                    write(f, #text, variant, value)
                }
            }
        }
    }

    /// The implementation for the enum.
    fn job_types(&self) -> TokenStream {
        let Self {
            types, queuert, state, ..
        } = self;
        let ident = &types.ident;
        let text = ident.to_string();
        let name = attempt_name(types);
        let names = self.each(|_, variant, _| {
            let name = &variant.name.value;
            quote!(#name,)
        });
        let defaults = self.each(|_, _, input| quote!(<#input as #queuert::JobType>::DEFAULTS,));
        let nodes = self.each(|index, variant, _| self.graph_node(index, variant));
        let attempts = self.each(|_, variant, input| {
            let (ident, text) = (&variant.ident, &variant.name.value);
            quote!(#text => #queuert::RawAttempt::typed::<#input>(raw).map(#name::#ident),)
        });
        let attempt = match attempts.is_empty() {
            true => quote!(()),
            false => quote!(#name<#state>),
        };
        quote! {
            #[automatically_derived]
            impl #queuert::JobTypes for #ident {
                type Attempt<#state: #queuert::adapter::StateAdapter> = #attempt;

                const NAMES: &'static [&'static str] = &[#names];

                fn graph() -> #queuert::Graph {
                    #queuert::Graph::new(#text, ::std::vec![#nodes])
                }

                fn attempt<#state: #queuert::adapter::StateAdapter>(
                    raw: #queuert::RawAttempt<#state>,
                ) -> ::std::result::Result<Self::Attempt<#state>, #queuert::JobError> {
                    match #queuert::RawAttempt::type_name(&raw) {
                        #attempts
                        _ => ::std::result::Result::Err(#queuert::RawAttempt::unknown(&raw, #text)),
                    }
                }

                fn defaults() -> ::std::vec::Vec<#queuert::JobDefaults> {
                    ::std::vec![#defaults]
                }
            }
        }
    }

    fn graph_node(&self, index: usize, variant: &Variant) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let name = &variant.name.value;
        let entry = variant.settings.entry;
        let continues = self.graph.next[index]
            .iter()
            .map(|next| &types.variants[*next].name.value);
        let output = match &variant.settings.output {
            Output::Type(ty) => {
                let text = type_text(ty);
                quote!(::std::option::Option::Some(#text))
            }
            Output::None | Output::Unreadable => quote!(::std::option::Option::None),
        };
        let blocker_names = variant.settings.blockers.types().iter().map(|ty| {
            let ty = self.blocker(ty);
            quote!(<#ty as #queuert::JobType>::NAME)
        });
        let blockers = match &variant.settings.blockers {
            Blockers::None | Blockers::Unreadable => quote!(None),
            Blockers::One(_) | Blockers::Each(_) => quote!(Each(::std::vec![#(#blocker_names),*])),
            Blockers::Any(_) => quote!(Any(#(#blocker_names)*)),
        };
        quote! {
            #queuert::GraphType::new(
                #name,
                #entry,
                ::std::vec![#(#continues),*],
                #output,
                #queuert::GraphBlockers::#blockers,
            ),
        }
    }

    /// The variants only carry the declaration, nobody needs to make or read one; this keeps the compiler from saying
    /// so. Not `From`, which would take that implementation from the user.
    fn uses(&self) -> TokenStream {
        let ident = &self.types.ident;
        let made = self.each(|index, variant, input| {
            let (variant, function) = (&variant.ident, format_ident!("variant_{index}"));
            quote! {
                #[allow(dead_code, reason = "says that the variant is used")]
                fn #function(input: #input) -> #ident {
                    #ident::#variant(input)
                }
            }
        });
        let read = self.each(|_, variant, _| {
            let variant = &variant.ident;
            quote!(#ident::#variant(input) => ::std::mem::drop(input),)
        });
        if made.is_empty() || self.permissive {
            return TokenStream::new();
        }
        quote! {
            const _: () = {
                #made
                #[allow(dead_code, reason = "says that what the variants wrap is used")]
                fn read(value: #ident) {
                    match value { #read }
                }
            };
        }
    }
}

fn defaults(queuert: &TokenStream, settings: &Settings) -> TokenStream {
    let mut code = quote!(#queuert::JobDefaults::new());
    if let Some(retry) = &settings.retry {
        let mut policy = quote!(#queuert::RetryPolicy::new());
        if let Some(attempts) = retry.max_attempts {
            let attempts = attempts.value;
            policy.extend(quote!(.max_attempts(#attempts)));
        }
        for (setter, delay) in [("initial", retry.initial), ("maximum", retry.maximum)] {
            if let Some(delay) = delay {
                let (setter, delay) = (format_ident!("{setter}"), duration(delay.value));
                policy.extend(quote!(.#setter(#delay)));
            }
        }
        for (setter, number) in [("multiplier", retry.multiplier), ("jitter", retry.jitter)] {
            if let Some(number) = number {
                let (setter, number) = (format_ident!("{setter}"), number.value);
                policy.extend(quote!(.#setter(#number)));
            }
        }
        code.extend(quote!(.retry(#policy)));
    }
    if let Some(lease) = &settings.lease {
        let mut settings = match lease.duration {
            Some(lasts) => {
                let lasts = duration(lasts.value);
                quote!(#queuert::LeaseSettings::of(#lasts))
            }
            None => quote!(#queuert::LeaseSettings::DEFAULT),
        };
        if let Some(renewal) = lease.renew_every {
            let renewal = duration(renewal.value);
            settings.extend(quote!(.renew_every(#renewal)));
        }
        code.extend(quote!(.lease(#settings)));
    }
    if let Some(timeout) = settings.timeout {
        let timeout = duration(timeout);
        code.extend(quote!(.timeout(#timeout)));
    }
    if let Some(priority) = settings.priority {
        code.extend(quote!(.priority(#priority)));
    }
    code
}

fn duration(value: Duration) -> TokenStream {
    let (seconds, nanoseconds) = (value.as_secs(), value.subsec_nanos());
    quote!(::std::time::Duration::new(#seconds, #nanoseconds))
}
