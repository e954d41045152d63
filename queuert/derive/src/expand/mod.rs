//! Writes the implementations.
//!
//! Whatever the user has in scope must not change what the code means: paths are absolute, and bindings begin with
//! `__`, since a binding that is named like a constant or a unit struct would be a pattern that compares.

mod chain_output;
mod job_type;
mod settings;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::Type;
use syn::ext::IdentExt;

use crate::attribute::{Blockers, Output};
use crate::check::{attempt_name, output_name};
use crate::naming::{mentions, type_text};
use crate::parse::{Types, Variant, single_ident};
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
        same_ends: chain_output::same_ends(types, graph, permissive),
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
    /// For each variant the entry whose enum of outputs it shares.
    same_ends: Vec<Option<usize>>,
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

/// The same tokens, as if they were written at one place.
fn placed(tokens: &impl ToTokens, place: Span) -> TokenStream {
    let place_token = |mut token: TokenTree| {
        if let TokenTree::Group(group) = &token {
            token = Group::new(group.delimiter(), placed(&group.stream(), place)).into();
        }
        token.set_span(place);
        token
    };
    tokens.to_token_stream().into_iter().map(place_token).collect()
}

impl Expansion<'_> {
    /// An implementation that the compiler places where the user declared it: it points from the keyword to the end of the
    /// implementing type, and for that the braces must be at a place of the user's too.
    fn implement(&self, place: Span, what: TokenStream, body: TokenStream) -> TokenStream {
        let allowed = &self.types.allowed;
        let keyword = Ident::new("impl", place);
        let mut body = Group::new(Delimiter::Brace, body);
        body.set_span(place);
        // A deprecated variant or struct is reported where the user wrote it, if at all.
        quote!(#[automatically_derived] #[allow(deprecated, reason = "as declared")] #allowed #keyword #what #body)
    }

    /// The enum of attempts; another name if the user has taken this one, which was reported.
    fn attempt_name(&self) -> Ident {
        self.free(attempt_name(self.types))
    }

    fn output_name(&self, entry: &Variant) -> Ident {
        self.free(output_name(entry))
    }

    fn free(&self, name: Ident) -> Ident {
        let taken = self.types.variants.iter().any(|variant| {
            let output = match &variant.settings.output {
                Output::Type(output) => Some(&**output),
                Output::None | Output::Unreadable => None,
            };
            [variant.input.as_ref(), output]
                .into_iter()
                .flatten()
                .any(|ty| single_ident(ty) == Some(&name))
        });
        if taken { format_ident!("{name}_") } else { name }
    }

    /// For each variant that has an input.
    fn each(&self, mut write: impl FnMut(usize, &Variant, &Type) -> TokenStream) -> TokenStream {
        self.types
            .variants
            .iter()
            .enumerate()
            .filter_map(|(index, variant)| Some(write(index, variant, variant.input.as_ref()?)))
            .collect()
    }

    /// The enum of attempts.
    fn attempts(&self) -> TokenStream {
        let Self {
            types, queuert, state, ..
        } = self;
        let visibility = &types.visibility;
        let (non_exhaustive, allowed) = (&types.non_exhaustive, &types.allowed);
        let name = self.attempt_name();
        let text = name.to_string();
        let summary = format!("An attempt of a job of `{}`, to match exhaustively.", types.ident);
        let variants = self.each(|_, variant, input| {
            let ident = &variant.ident;
            let doc = format!("Of a `{}`.", variant.name.value);
            quote!(#[doc = #doc] #ident(#queuert::Attempt<#input, #state>),)
        });
        let arms = self.each(|_, variant, _| {
            let ident = &variant.ident;
            let text = ident.unraw().to_string();
            quote!(Self::#ident(__value) => (#text, (&Probe(__value)).shown()),)
        });
        if variants.is_empty() {
            return TokenStream::new();
        }
        quote! {
            #[doc = #summary]
            #[allow(dead_code, reason = "made whether or not the job types are processed by one `match`")]
            #[allow(deprecated, private_interfaces, reason = "as declared")]
            #allowed
            #non_exhaustive
            #visibility enum #name<#state: #queuert::adapter::StateAdapter> {
                #variants
            }

            #[automatically_derived]
            #[allow(deprecated, reason = "as declared")]
            #allowed
            impl<#state: #queuert::adapter::StateAdapter> ::std::fmt::Debug for #name<#state> {
                fn fmt(&self, __f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    use #queuert::__private::debug::*;
                    let (__variant, __value) = match self {
                        #arms
                    };
                    write(__f, #text, __variant, __value)
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
        let text = ident.unraw().to_string();
        let name = self.attempt_name();
        let names = self.each(|_, variant, _| {
            let name = &variant.name.value;
            quote!(#name,)
        });
        // Not `<Input as JobType>::SETTINGS`: an input that cannot be stored would be reported again here.
        let settings = self.each(|_, variant, _| {
            let settings = settings::settings(queuert, &variant.settings);
            quote!(#settings,)
        });
        let nodes = self.each(|index, variant, input| self.graph_node(index, variant, input));
        let attempts = self.each(|_, variant, input| {
            let (ident, text) = (&variant.ident, &variant.name.value);
            quote!(#text => #queuert::RawAttempt::typed::<#input>(__raw).map(#name::#ident),)
        });
        let attempt = match attempts.is_empty() {
            true => quote!(()),
            false => quote!(#name<#state>),
        };
        let body = quote! {
                type Attempt<#state: #queuert::adapter::StateAdapter> = #attempt;

                const NAMES: &'static [&'static str] = &[#names];

                fn graph() -> #queuert::Graph {
                    #queuert::Graph::new(#text, ::std::vec![#nodes])
                }

                fn attempt<#state: #queuert::adapter::StateAdapter>(
                    __raw: #queuert::RawAttempt<#state>,
                ) -> ::std::result::Result<#attempt, #queuert::JobError> {
                    match #queuert::RawAttempt::type_name(&__raw) {
                        #attempts
                        _ => ::std::result::Result::Err(#queuert::RawAttempt::unknown(&__raw, #text)),
                    }
                }

                fn settings() -> ::std::vec::Vec<#queuert::JobSettings> {
                    ::std::vec![#settings]
                }
        };
        self.implement(ident.span(), quote!(#queuert::JobTypes for #ident), body)
    }

    fn graph_node(&self, index: usize, variant: &Variant, input: &Type) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let name = &variant.name.value;
        let entry = variant.settings.entry.is_some();
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
            quote!(#queuert::__private::blocker_name::<#input, #ty>())
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
        let queuert = self.queuert;
        let (ident, allowed) = (&self.types.ident, &self.types.allowed);
        let made = self.each(|index, variant, input| {
            let (variant, function) = (&variant.ident, format_ident!("variant_{index}"));
            quote! {
                #[allow(dead_code, deprecated, reason = "says that the variant is used")]
                fn #function(__input: #input) -> #ident {
                    #ident::#variant(__input)
                }
            }
        });
        let read = self.each(|_, variant, _| {
            let variant = &variant.ident;
            quote!(#ident::#variant(__input) => #queuert::__private::take(__input),)
        });
        if made.is_empty() || self.permissive {
            return TokenStream::new();
        }
        quote! {
            #allowed
            const _: () = {
                #made
                #[allow(dead_code, deprecated, reason = "says that what the variants wrap is used")]
                fn read(__value: #ident) {
                    match __value { #read }
                }
            };
        }
    }
}
