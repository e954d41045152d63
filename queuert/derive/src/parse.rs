//! Reads the enum into a model. Whatever cannot be read is reported and left out, marked as such where a later check
//! would otherwise report the consequence.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Fields, GenericParam, Ident, Type, Visibility};

use crate::attribute;
use crate::diagnostics::Problems;
use crate::naming::{kebab_case, mentions, type_text};
use crate::value::{Written, check_name};

/// The enum.
pub(crate) struct Types {
    pub(crate) visibility: Visibility,
    pub(crate) ident: Ident,
    /// The path to `queuert`.
    pub(crate) queuert: TokenStream,
    pub(crate) generic: bool,
    /// `#[non_exhaustive]`, which then holds for the enums that grow with this one too.
    pub(crate) non_exhaustive: Option<Attribute>,
    /// The lints that the user allows on the enum, for what is generated beside it.
    pub(crate) allowed: TokenStream,
    pub(crate) variants: Vec<Variant>,
}

/// One job type.
pub(crate) struct Variant {
    pub(crate) ident: Ident,
    /// The wrapped struct; `None` if there is none, or another variant wraps it too.
    pub(crate) input: Option<Type>,
    /// Defaults to the variant in kebab-case.
    pub(crate) name: Written<String>,
    pub(crate) settings: attribute::Settings,
}

impl Types {
    pub(crate) fn position(&self, name: &Ident) -> Option<usize> {
        self.variants.iter().position(|variant| variant.ident == *name)
    }

    /// The variant that a type in `blockers = ..` names, if it names one of this enum.
    pub(crate) fn named_by(&self, ty: &Type) -> Option<usize> {
        self.position(single_ident(ty)?)
    }

    /// Forgets blockers that name a variant without an input. That was reported, and the name alone is no type.
    pub(crate) fn drop_faulty_blockers(&mut self) {
        for index in 0..self.variants.len() {
            let named = self.variants[index].settings.blockers.types();
            let faulty = |ty| {
                self.named_by(ty)
                    .is_some_and(|blocker| self.variants[blocker].input.is_none())
            };
            if named.iter().any(faulty) {
                self.variants[index].settings.blockers = attribute::Blockers::Unreadable;
            }
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Ident> {
        self.variants
            .iter()
            .filter(|variant| variant.settings.entry.is_some())
            .map(|variant| &variant.ident)
    }
}

/// The identifier that is the whole type.
pub(crate) fn single_ident(ty: &Type) -> Option<&Ident> {
    match ty {
        Type::Path(path) if path.qself.is_none() => path.path.get_ident(),
        Type::Group(group) => single_ident(&group.elem),
        _ => None,
    }
}

pub(crate) fn parse(input: DeriveInput, problems: &mut Problems) -> Types {
    let mut types = Types {
        visibility: input.vis,
        ident: input.ident,
        queuert: attribute::read_crate(&input.attrs, problems).unwrap_or_else(|| quote!(::queuert)),
        generic: !input.generics.params.is_empty(),
        non_exhaustive: input
            .attrs
            .iter()
            .find(|attribute| attribute.path().is_ident("non_exhaustive"))
            .cloned(),
        allowed: input.attrs.iter().filter_map(allowed_lints).collect(),
        variants: Vec::new(),
    };
    if types.generic {
        problems.add(
            input.generics.params.span(),
            format!(
                "`{}` has generic parameters: job types are stored under fixed names, so each must be one concrete type; \
                 remove the parameters",
                types.ident
            ),
        );
    }
    let parameters: Vec<_> = input.generics.params.iter().map(parameter_name).collect();
    match input.data {
        Data::Enum(data) => {
            if data.variants.is_empty() {
                problems.add(
                    types.ident.span(),
                    format!(
                        "`{}` has no job types: add a variant for each, such as `#[job(entry, output = ())] SendMail(SendMail)`",
                        types.ident
                    ),
                );
            }
            for (index, variant) in data.variants.into_iter().enumerate() {
                problems.on_variant(index);
                let mut variant = parse_variant(variant, &types.variants, problems);
                // Code outside the enum cannot name its parameters.
                variant.input.take_if(|input| parameters.iter().any(|parameter| mentions(input, parameter)));
                types.variants.push(variant);
            }
        }
        Data::Struct(_) | Data::Union(_) => problems.add(
            types.ident.span(),
            format!(
                "`{}` is not an enum: `#[derive(JobTypes)]` goes on an enum with a variant for each job type, each wrapping \
                 the struct that is its input",
                types.ident
            ),
        ),
    }
    types
}

/// `#[allow(..)]` as it is. `#[expect(..)]` as `#[allow(..)]`: the lint may come up on one of the generated items or on none.
fn allowed_lints(attribute: &Attribute) -> Option<TokenStream> {
    let path = attribute.path();
    let lints = &attribute.meta.require_list().ok()?.tokens;
    (path.is_ident("allow") || path.is_ident("expect")).then(|| quote!(#[allow(#lints)]))
}

fn parameter_name(parameter: &GenericParam) -> String {
    match parameter {
        GenericParam::Lifetime(parameter) => parameter.lifetime.ident.to_string(),
        GenericParam::Type(parameter) => parameter.ident.to_string(),
        GenericParam::Const(parameter) => parameter.ident.to_string(),
    }
}

fn parse_variant(variant: syn::Variant, before: &[Variant], problems: &mut Problems) -> Variant {
    let settings = attribute::read(&variant.attrs, problems);
    let ident = variant.ident;
    let name = settings.name.clone().unwrap_or_else(|| Written {
        value: kebab_case(&ident.unraw().to_string()),
        span: ident.span(),
    });
    if settings.name.is_none()
        && let Err(error) = check_name(&name.value, name.span)
    {
        problems.add_error(error);
    }
    for field in &variant.fields {
        refuse_on_field(&field.attrs, problems);
    }
    let input = wrapped(&ident, variant.fields, problems).filter(|input| {
        let text = type_text(input);
        let other = before
            .iter()
            .find(|other| other.input.as_ref().is_some_and(|input| type_text(input) == text));
        if let Some(other) = other {
            problems.add(
                input.span(),
                format!(
                    "`{}` and `{ident}` both wrap `{text}`: the input identifies the job type, so wrap a struct of its own",
                    other.ident
                ),
            );
        }
        other.is_none()
    });
    Variant {
        ident,
        input,
        name,
        settings,
    }
}

/// The one type that the variant wraps.
fn wrapped(ident: &Ident, fields: Fields, problems: &mut Problems) -> Option<Type> {
    let fix = format!("wrap the struct that is the input of its jobs: `{ident}({ident})`");
    let found = match &fields {
        Fields::Unnamed(fields) if fields.unnamed.len() > 1 => "wraps several types",
        Fields::Named(_) => "has named fields",
        _ if fields.is_empty() => "wraps nothing",
        Fields::Unnamed(_) | Fields::Unit => {
            let ty = fields.into_iter().next()?.ty;
            if is_struct(&ty) {
                return Some(ty);
            }
            problems.add(
                ty.span(),
                format!(
                    "`{ident}` wraps `{}`, which is no struct of yours: {fix}",
                    type_text(&ty)
                ),
            );
            return None;
        }
    };
    problems.add(ident.span(), format!("`{ident}` {found}: {fix}"));
    None
}

/// Whether the type may be a struct of the user's. A path can lead anywhere, so only what certainly is none is
/// refused; the compiler sees to the rest.
fn is_struct(ty: &Type) -> bool {
    const PRIMITIVES: &[&str] = &[
        "bool", "char", "str", "String", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128",
        "isize", "f32", "f64",
    ];
    match ty {
        Type::Group(group) => is_struct(&group.elem),
        Type::Path(path) => !path
            .path
            .get_ident()
            .is_some_and(|ident| PRIMITIVES.iter().any(|name| ident == name)),
        Type::Macro(_) => true,
        _ => false,
    }
}

fn refuse_on_field(attributes: &[Attribute], problems: &mut Problems) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("job")) {
        problems.add(
            attribute.span(),
            "`#[job(..)]` goes on the variant, not on what it wraps",
        );
    }
}
