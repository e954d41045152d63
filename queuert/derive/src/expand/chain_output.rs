//! The output of the chains that start with an entry.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::Type;
use syn::ext::IdentExt;

use super::{Expansion, placed};
use crate::check::{ends, share_one_type};
use crate::parse::{Types, Variant};
use crate::reach::Graph;

/// For each variant the first entry before it whose chains have the same ends. With `permissive` every variant is an entry.
pub(super) fn same_ends(types: &Types, graph: &Graph, permissive: bool) -> Vec<Option<usize>> {
    let mut firsts = HashMap::new();
    let mut same = vec![None; types.variants.len()];
    for (index, variant) in types.variants.iter().enumerate() {
        let is_entry = variant.settings.entry.is_some() || permissive;
        if !is_entry || variant.input.is_none() {
            continue;
        }
        let ends: Vec<_> = ends(types, graph, index).into_iter().map(|(end, _)| end).collect();
        match firsts.entry(ends) {
            Entry::Occupied(first) => same[index] = Some(*first.get()),
            Entry::Vacant(first) => {
                first.insert(index);
            }
        }
    }
    same
}

impl Expansion<'_> {
    /// `Entry`, with the enum of outputs if the ends differ.
    ///
    /// Entries whose chains have the same ends share one enum and one decoder: where n entries reach each other, the code
    /// grows with n and not with n².
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
        let first = self.same_ends[index].map(|first| &types.variants[first]);
        let output_type = match first {
            _ if shared => TokenStream::new(),
            None => self.output_enum(variant, &ends),
            Some(first) => self.output_alias(variant, first),
        };
        let decode = match first {
            None => self.decoder(variant, &ends, shared),
            Some(Variant { input: first, .. }) => {
                quote!(<#first as #queuert::Entry>::decode_output(__finished_by, __output))
            }
        };
        let place = variant.settings.entry.unwrap_or_else(|| variant.ident.span());
        let input = placed(input, place);
        // Placed, as this is where an output enum less visible than its entry is reported.
        let associated = placed(&quote!(type Output = #output;), place);
        let body = quote! {
            #associated

                fn decode_output(
                    __finished_by: &str,
                    __output: &#queuert::Payload,
                ) -> ::std::result::Result<#output, #queuert::PayloadError> {
                    #decode
                }
        };
        let implementation = self.implement(place, quote!(#queuert::Entry for #input), body);
        quote!(#implementation #output_type)
    }

    /// Reads the output of the job that finished the chain.
    fn decoder(&self, variant: &Variant, ends: &[(usize, &Type)], shared: bool) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let output_name = self.output_name(variant);
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
        quote! {
            match __finished_by {
                #arms
                _ => ::std::result::Result::Err(#queuert::__private::no_such_end(__finished_by, &[#(#names),*])),
            }
        }
    }

    /// The name of the enum of outputs of an entry that has the same ends as another.
    fn output_alias(&self, variant: &Variant, first: &Variant) -> TokenStream {
        let (visibility, allowed) = (&self.types.visibility, &self.types.allowed);
        let (name, same) = (self.output_name(variant), self.output_name(first));
        let declared = placed(&quote!(type #name = #same;), self.types.ident.span());
        let summary = format!(
            "What a chain of `{}` gives. It has the same ends as a chain of `{}`, so this is the same enum.",
            variant.name.value, first.name.value
        );
        quote! {
            #[doc = #summary]
            #[allow(dead_code, reason = "an output that nobody reads is no mistake")]
            #[allow(deprecated, private_interfaces, reason = "as declared")]
            #allowed
            #visibility #declared
        }
    }

    fn output_enum(&self, variant: &Variant, ends: &[(usize, &Type)]) -> TokenStream {
        let Self { types, queuert, .. } = self;
        let visibility = &types.visibility;
        let (non_exhaustive, allowed) = (&types.non_exhaustive, &types.allowed);
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
            #allowed
            #non_exhaustive
            #visibility #declared {
                #(#[doc = #docs] #idents(#outputs),)*
            }

            #[automatically_derived]
            #[allow(deprecated, reason = "as declared")]
            #allowed
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
