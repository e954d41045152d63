//! The output of the chains that start with an entry.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::Type;

use super::{Expansion, implement, placed};
use crate::check::{ends, share_one_type};
use crate::parse::Variant;

impl Expansion<'_> {
    /// `Entry`, with the enum of outputs if the ends differ.
    pub(super) fn entry(&self, index: usize, variant: &Variant, input: &Type) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let ends = ends(types, self.graph, index);
        let shared = share_one_type(&ends);
        let output_name = self.output_name(variant);
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
        let place = variant.settings.entry.unwrap_or_else(|| variant.ident.span());
        let input = placed(input, place);
        let body = quote! {
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
        };
        let implementation = implement(place, quote!(#queuert::Entry for #input), body);
        quote!(#implementation #output_enum)
    }

    fn output_enum(&self, variant: &Variant, ends: &[(usize, &Type)]) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let visibility = &types.visibility;
        let name = self.output_name(variant);
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
}
