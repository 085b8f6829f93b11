//! Which keys a settings type has: asked from the type's own `Deserialize`, so no list can fall behind it.
//!
//! A probe plays the deserializer. At a struct it notes the names of the fields and offers one of them, so that the
//! struct asks for that field's value; after that it fails. One run per field finds the whole tree.

use std::cell::RefCell;
use std::rc::Rc;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, Visitor};

/// Deeper settings are not looked at.
const DEPTH_MAX: usize = 8;

/// One key that has a value of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its path; joined by dots, the key.
    pub path: Vec<String>,
    /// Its value is a text: what the environment and `--set` give is taken as it is, not as TOML.
    pub text: bool,
}

impl Key {
    /// The dotted key.
    #[must_use]
    pub fn dotted(&self) -> String {
        self.path.join(".")
    }

    /// Its environment name.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{}{}", super::ENVIRONMENT_PREFIX, self.path.join("_").to_uppercase().replace('-', "_"))
    }
}

/// All keys of a type, tables left out.
pub fn keys<T: DeserializeOwned>() -> Vec<Key> {
    let mut found = Vec::new();
    let mut open: Vec<Vec<&'static str>> = vec![Vec::new()];
    while let Some(path) = open.pop() {
        match ask::<T>(&path) {
            Shape::Struct(fields) if path.len() < DEPTH_MAX => {
                open.extend(fields.iter().rev().map(|field| [&path[..], &[*field]].concat()));
            }
            shape => found.push(Key {
                path: path.iter().map(|part| (*part).to_owned()).collect(),
                text: matches!(shape, Shape::Text),
            }),
        }
    }
    found.retain(|key| !key.path.is_empty());
    found
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    Struct(&'static [&'static str]),
    Text,
    Other,
}

/// What the type wants at a path.
fn ask<T: DeserializeOwned>(path: &[&'static str]) -> Shape {
    let shape = Rc::new(RefCell::new(Shape::Other));
    // It always fails: the probe never has a value to give.
    let _ = T::deserialize(Probe { path, shape: shape.clone() });
    *shape.borrow()
}

struct Probe<'a> {
    path: &'a [&'static str],
    shape: Rc<RefCell<Shape>>,
}

impl Probe<'_> {
    fn note<V>(self, shape: Shape) -> Result<V, Stop> {
        if self.path.is_empty() {
            *self.shape.borrow_mut() = shape;
        }
        Err(Stop)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the probe has no values")]
struct Stop;

impl de::Error for Stop {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! note {
    ($shape:expr => $($name:ident)*) => {
        $(fn $name<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
            self.note($shape)
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    note!(Shape::Text => deserialize_char deserialize_str deserialize_string deserialize_identifier);
    note!(Shape::Other => deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32
        deserialize_i64 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_f32
        deserialize_f64 deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_seq deserialize_map
        deserialize_ignored_any deserialize_i128 deserialize_u128);

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, _: V) -> Result<V::Value, Stop> {
        self.note(Shape::Other)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Stop> {
        self.note(Shape::Other)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        _: V,
    ) -> Result<V::Value, Stop> {
        self.note(Shape::Other)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Stop> {
        self.note(Shape::Text)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match self.path {
            [] => self.note(Shape::Struct(fields)),
            [field, path @ ..] => {
                visitor.visit_map(OneField { field, rest: Probe { path, shape: self.shape } })
            }
        }
    }
}

struct OneField<'a> {
    field: &'static str,
    rest: Probe<'a>,
}

impl<'de> MapAccess<'de> for OneField<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stop> {
        seed.deserialize(StrDeserializer::new(self.field)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        seed.deserialize(Probe { path: self.rest.path, shape: self.rest.shape.clone() })
    }
}
