//! The implementations for one job type: itself, and its relations to others.
//!
//! Each is placed where the user declared it, so that the compiler points there when it names what is implemented.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Index, Type};

use super::{Expansion, placed, settings};
use crate::attribute::{Blockers, Output};
use crate::naming::type_text;
use crate::parse::Variant;

impl Expansion<'_> {
    pub(super) fn job_type(&self, index: usize, variant: &Variant, input: &Type) -> TokenStream {
        let queuert = self.queuert;
        let name = &variant.name.value;
        let settings = settings::settings(queuert, &variant.settings);
        let blockers = self.blocker_spec(&variant.settings.blockers);
        let body = quote! {
            type Blockers = #blockers;
            const NAME: &'static str = #name;
            const SETTINGS: #queuert::JobSettings = #settings;
        };
        let mut code = self.implement(input.span(), quote!(#queuert::JobType for #input), body);
        if variant.settings.has_expressions() {
            let place = variant.ident.span();
            let check = placed(
                &quote!(#queuert::__private::check_settings(<#input as #queuert::JobType>::SETTINGS)),
                place,
            );
            code.extend(quote_spanned!(place=> const _: () = #check;));
        }
        if variant.settings.entry.is_some() || self.permissive {
            code.extend(self.entry(index, variant, input));
        }
        code.extend(self.continuations(variant, input));
        code.extend(self.output(variant, input));
        code.extend(self.waits_for(variant, input));
        code.extend(self.blockers_of(&variant.settings.blockers, input));
        code
    }

    fn continuations(&self, variant: &Variant, input: &Type) -> TokenStream {
        let queuert = self.queuert;
        if self.permissive {
            return quote! {
                #[automatically_derived]
                impl<__Previous> #queuert::ContinuationOf<__Previous> for #input {}
            };
        }
        let continues = variant.settings.continues.iter().filter_map(|path| {
            let next = self.types.variants[self.types.position(path.get_ident()?)?]
                .input
                .as_ref()?;
            let next = placed(next, path.span());
            let what = quote!(#queuert::ContinuationOf<#input> for #next);
            Some(self.implement(path.span(), what, TokenStream::new()))
        });
        continues.collect()
    }

    fn output(&self, variant: &Variant, input: &Type) -> TokenStream {
        let queuert = self.queuert;
        let Output::Type(output) = &variant.settings.output else {
            return TokenStream::new();
        };
        let what = quote!(#queuert::OutputOf<#input> for #output);
        self.implement(output.span(), what, TokenStream::new())
    }

    fn waits_for(&self, variant: &Variant, input: &Type) -> TokenStream {
        let queuert = self.queuert;
        let blockers = &variant.settings.blockers;
        let mut code = TokenStream::new();
        if self.permissive || matches!(blockers, Blockers::None) {
            let place = variant.ident.span();
            let input = placed(input, place);
            code.extend(self.implement(place, quote!(#queuert::Unblocked for #input), TokenStream::new()));
        }
        match blockers {
            Blockers::None => {}
            Blockers::Unreadable => {
                let parameters = [quote!(__A), quote!(__A), quote!(__A, __B), quote!(__A, __B, __C)];
                let kinds = [
                    quote!(#queuert::One<__A>),
                    quote!(#queuert::Many<__A>),
                    quote!((__A, __B)),
                    quote!((__A, __B, __C)),
                ];
                code.extend(quote!(#(
                    #[automatically_derived]
                    impl<#parameters> #queuert::AwaitedBy<#input> for #kinds {}
                )*));
            }
            Blockers::One(_) | Blockers::Each(_) | Blockers::Any(_) => {
                let kind = self.blocker_spec(blockers);
                let what = quote!(#queuert::AwaitedBy<#input> for #kind);
                code.extend(self.implement(first_place(blockers), what, TokenStream::new()));
            }
        }
        code
    }

    /// The entry type that a name in `blockers = ..` stands for, placed there.
    pub(super) fn blocker(&self, ty: &Type) -> TokenStream {
        let variant = self.types.named_by(ty).map(|index| &self.types.variants[index]);
        match variant.and_then(|variant| variant.input.as_ref()) {
            Some(input) => placed(input, ty.span()),
            None => ty.to_token_stream(),
        }
    }

    fn blocker_spec(&self, blockers: &Blockers) -> TokenStream {
        let queuert = self.queuert;
        let place = first_place(blockers);
        let types = blockers.types().iter().map(|ty| self.blocker(ty));
        match blockers {
            Blockers::None | Blockers::Unreadable => quote!(()),
            Blockers::One(_) => placed(&quote!(#queuert::One<#(#types)*>), place),
            Blockers::Each(_) => quote_spanned!(place=> (#(#types),*)),
            Blockers::Any(_) => placed(&quote!(#queuert::Many<#(#types)*>), place),
        }
    }

    /// `BlockerOf`, once for each distinct entry type.
    fn blockers_of(&self, blockers: &Blockers, input: &Type) -> TokenStream {
        let queuert = self.queuert;
        let mut distinct: Vec<(TokenStream, Vec<Index>)> = Vec::new();
        for (place, ty) in blockers.types().iter().enumerate() {
            let blocker = self.blocker(ty);
            let known = distinct
                .iter_mut()
                .find(|(other, _)| type_text(other) == type_text(&blocker));
            match known {
                Some((_, places)) => places.push(Index::from(place)),
                None => distinct.push((blocker, vec![Index::from(place)])),
            }
        }
        let implementations = distinct.into_iter().map(|(blocker, places)| {
            let place = blocker.span();
            let given = quote!(<<#input as #queuert::JobType>::Blockers as #queuert::BlockerSpec>::Outputs);
            let given = placed(&given, place);
            let outputs = match blockers {
                Blockers::Each(_) => quote!(::std::vec![#(&__blockers.#places),*]),
                Blockers::Any(_) => quote!(::std::iter::Iterator::collect(<[_]>::iter(__blockers))),
                _ => quote!(::std::vec![__blockers]),
            };
            let body = quote! {
                fn outputs(__blockers: &#given) -> ::std::vec::Vec<&<Self as #queuert::Entry>::Output> {
                    #outputs
                }
            };
            self.implement(
                place,
                quote!(#queuert::BlockerOf<#input> for #blocker),
                placed(&body, place),
            )
        });
        implementations.collect()
    }
}

fn first_place(blockers: &Blockers) -> Span {
    blockers.types().first().map_or_else(Span::call_site, Spanned::span)
}
