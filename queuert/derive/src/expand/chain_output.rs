//! The output of the chains that start with an entry.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::Type;
use syn::ext::IdentExt;

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
                quote!(#(#names)|* => #queuert::__private::decode_output::<#finished_by, #ty>(__output),)
            })
        } else {
            let arms = ends.iter().zip(&names).map(|((end, ty), name)| {
                let Variant { ident, input, .. } = &types.variants[*end];
                quote! {
                    #name => #queuert::__private::decode_output::<#input, #ty>(__output).map(#output_name::#ident),
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
        // Placed, as this is where an output enum less visible than its entry is reported.
        let output_type = placed(&quote!(type Output = #output;), place);
        let body = quote! {
            #output_type

                fn decode_output(
                    __finished_by: &str,
                    __output: &#queuert::Payload,
                ) -> ::std::result::Result<#output, #queuert::PayloadError> {
                    match __finished_by {
                        #arms
                        _ => ::std::result::Result::Err(
                            #queuert::__private::no_such_end::<Self>(__finished_by, &[#(#names),*]),
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
        let non_exhaustive = &types.non_exhaustive;
        let name = self.output_name(variant);
        let declared = placed(&quote!(enum #name), types.ident.span());
        let text = name.to_string();
        let summary = format!(
            "What a chain of `{}` gives, depending on the job that finished it.",
            variant.name.value
        );
        let idents: Vec<_> = ends.iter().map(|(end, _)| &types.variants[*end].ident).collect();
        let texts = idents.iter().map(|ident| ident.unraw().to_string());
        let outputs = ends.iter().map(|(_, ty)| ty);
        let docs = ends
            .iter()
            .map(|(end, _)| format!("Finished by a `{}`.", types.variants[*end].name.value));
        quote! {
            #[doc = #summary]
            #[allow(dead_code, reason = "an output that nobody reads is no mistake")]
            #[allow(deprecated, private_interfaces, reason = "as declared")]
            #non_exhaustive
            #visibility #declared {
                #(#[doc = #docs] #idents(#outputs),)*
            }

            #[automatically_derived]
            #[allow(deprecated, reason = "as declared")]
            impl ::std::fmt::Debug for #name {
                fn fmt(&self, __f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    use #queuert::__private::debug::*;
                    let (__variant, __value) = match self {
                        #(Self::#idents(__value) => (#texts, (&Probe(__value)).shown()),)*
                    };
                    write(__f, #text, __variant, __value)
                }
            }
        }
    }
}
