//! The header of element types, `kernels/common/elements.cuh`, which their table generates.

use std::fmt::Write;

use super::header;
use crate::operand::Element;

/// The text of the header.
fn elements() -> String {
    let rows: Vec<&Element> = Element::TABLE.iter().filter(|row| !row.cuda.is_empty()).collect();
    let (mut classes, mut widened) = (Vec::new(), Vec::new());
    let (mut types, mut traits) = (String::new(), String::new());
    for row in rows {
        let Element { cuda, builtin, bits, note, .. } = row;
        let class = format!("{:?}", row.class).to_uppercase();
        let unsigned = if *bits <= 8 { "char" } else { "short" };
        let _ = match builtin.is_empty() {
            false => writeln!(types, "using {cuda} = {builtin};"),
            true => writeln!(types, "struct {cuda} {{ unsigned {unsigned} bits; }};  // {note}"),
        };
        let traits_of = format!("{bits}, ElementClass::{class}, {}", row.is_signed());
        let _ = writeln!(
            traits,
            "template <> struct ElementType<{cuda}> : ElementTraits<{traits_of}> {{}};"
        );
        if !classes.contains(&class) {
            if row.class.is_widened() {
                widened.push(format!("class_of<T> == ElementClass::{class}"));
            }
            classes.push(class);
        }
    }
    let (classes, widened) = (classes.join(", "), widened.join(" ||\n    "));
    format!(
        "// Element types. Generated from the table in src/operand/dtype.rs by
// RUTLASS_WRITE_ELEMENTS=1 cargo test elements
//
// Types that C++ lacks are structs around their bits, so that no conversion happens implicitly.
// clang-format off
#pragma once

{types}#define RUTLASS_HAS_TYPES true  // these names are not a user's (src/compile/signature.rs)

enum class ElementClass {{
  {classes}
}};

template <int BITS_, ElementClass CLASS_, bool IS_SIGNED_> struct ElementTraits {{
  static constexpr int BITS = BITS_;
  static constexpr ElementClass CLASS = CLASS_;
  static constexpr bool IS_SIGNED = IS_SIGNED_;
}};

template <class T> struct ElementType;
{traits}
template <class T> inline constexpr int bits_of = ElementType<T>::BITS;
template <class T> inline constexpr ElementClass class_of = ElementType<T>::CLASS;
// Whether kernels convert elements to those of another factor, of 16 bits.
template <class T> inline constexpr bool is_widened =
    {widened};
// How many elements a byte holds: 1 also for wider ones.
template <class T> inline constexpr int packing_of = bits_of<T> < 8 ? 8 / bits_of<T> : 1;
// Bytes of adjacent elements, or of a stride.
template <class T, class Count> __host__ __device__ constexpr Count bytes_of(Count elements) {{
  if constexpr (bits_of<T> < 8)
    return elements / packing_of<T>;
  else
    return elements * (bits_of<T> / 8);
}}
"
    )
}

#[test]
fn the_header_of_elements_is_what_their_table_generates() {
    if std::env::var_os("RUTLASS_WRITE_ELEMENTS").is_some() {
        std::fs::write("kernels/common/elements.cuh", elements()).expect("the folder is writable");
    } else {
        let wanted = elements();
        let actual = header("common/elements.cuh").unwrap_or_default();
        assert_eq!(actual, wanted, "run RUTLASS_WRITE_ELEMENTS=1 cargo test elements");
    }
}
