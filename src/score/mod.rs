//! Two rows of logits in, one score out.
