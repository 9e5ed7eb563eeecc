//! The table of ggml's types is ggml's own.

use std::ffi::CStr;

use kl_formats::GgmlType;
use llama_cpp_sys_2 as sys;

#[test]
fn every_type_is_as_ggml_has_it() {
    let mut n_known = 0;
    for id in 0..sys::GGML_TYPE_COUNT {
        // SAFETY: tables of constants, asked for a type below their count.
        let (block, block_bytes, name, has_product) = unsafe {
            let name = CStr::from_ptr(sys::ggml_type_name(id));
            let product = (*sys::ggml_get_type_traits_cpu(id)).vec_dot;
            let (block, bytes) = (sys::ggml_blck_size(id), sys::ggml_type_size(id));
            (block as u64, bytes as u64, name, product.is_some())
        };
        let Some(found) = GgmlType::of(id) else {
            assert_eq!(block, 0, "{id} was removed from ggml: {name:?}");
            continue;
        };
        n_known += 1;
        assert_eq!(
            (
                found.id,
                Ok(found.name),
                found.block,
                found.block_bytes,
                found.is_for_weights
            ),
            (id, name.to_str(), block, block_bytes, has_product)
        );
    }
    assert!(n_known > 30);
}
