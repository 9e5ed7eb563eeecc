//! Hall's correction of an interval for skewness.

/// The number of standard errors that an interval reaches below and above a mean.
///
/// Without skewness that is t on both sides. A right-skewed sample mostly underestimates its mean
/// and its error together, so the interval has to reach further up than down. Hall (1992, "On the
/// removal of skewness by transformation", J. R. Statist. Soc. B 54) turns the studentised mean T
/// into one that is nearly symmetric. With k the `skewness` of the mean (that of one observation,
/// over the square root of their number):
///
/// ```text
/// g(T) = T + k T²/3 + k² T³/27 + k/6,   g⁻¹(x) = (3/k) · ( (1 + k (x − k/6))^⅓ − 1 )
/// ```
///
/// The interval reaches from `mean − g⁻¹(t)·SE` to `mean − g⁻¹(−t)·SE`.
pub fn reach(t: f64, skewness: f64) -> (f64, f64) {
    let below = inverse(t, skewness);
    let above = -inverse(-t, skewness);
    // At tiny t the shift by k/6 would leave the mean outside.
    (below.max(0.0), above.max(0.0))
}

/// The transformation itself: g(T).
///
/// Its derivative is `(1 + k T/3)²`: it never falls.
pub fn transform(t: f64, skewness: f64) -> f64 {
    let k = skewness;
    t + k * t.powi(2) / 3.0 + k.powi(2) * t.powi(3) / 27.0 + k / 6.0
}

fn inverse(x: f64, k: f64) -> f64 {
    if k == 0.0 {
        return x;
    }
    let y = k * (x - k / 6.0);
    let root_less_1 = match y > -0.5 {
        // Does not cancel for small k.
        true => (y.ln_1p() / 3.0).exp_m1(),
        false => (1.0 + y).cbrt() - 1.0,
    };
    3.0 / k * root_less_1
}

#[cfg(test)]
mod tests {
    use super::super::oracle::assert_close;
    use super::*;

    /// The roots of g, by bisection, from `oracle.py`.
    #[test]
    fn inverts_the_transformation() {
        for (skewness, t, below, above) in HALL {
            let got = reach(t, skewness);
            assert_close(got.0, below, 1e-12);
            assert_close(got.1, above, 1e-12);
        }
    }

    const HALL: [(f64, f64, f64, f64); 32] = [
        (-0.9, 0.7, 1.2763314024077603, 0.4781364066300196),
        (-0.9, 1.96, 6.550438878075352, 1.267208039156429),
        (-0.9, 2.045, 6.639219053348861, 1.3114050587790305),
        (-0.9, 4.3, 8.143501251138806, 2.2640545893140356),
        (-0.3, 0.7, 0.8145472499288614, 0.6118059986337429),
        (-0.3, 1.96, 2.650403403447493, 1.6299069738107443),
        (-0.3, 2.045, 2.8112573037175657, 1.6924147878890041),
        (-0.3, 4.3, 16.731315497265285, 3.152060571428129),
        (-1e-06, 0.7, 0.7000003300001413, 0.6999996700001413),
        (-1e-06, 1.96, 1.960001447201612, 1.959998552801612),
        (-1e-06, 2.045, 2.045001560676811, 2.044998439326811),
        (-1e-06, 4.3, 4.300006330015201, 4.299993670015201),
        (1e-09, 0.7, 0.6999999996699999, 0.70000000033),
        (1e-09, 1.96, 1.9599999985528, 1.9600000014471999),
        (1e-09, 2.045, 2.044999998439325, 2.045000001560675),
        (1e-09, 4.3, 4.29999999367, 4.3000000063299995),
        (0.01, 0.7, 0.6967140458968087, 0.7033142144474868),
        (0.01, 1.96, 1.9456870588820243, 1.9746354337689345),
        (0.01, 2.045, 2.029571830487472, 2.060790443120654),
        (0.01, 4.3, 4.238177552422904, 4.364865504234912),
        (0.1, 0.7, 0.6683337678045186, 0.7345030617600461),
        (0.1, 1.96, 1.8294967797326844, 2.1234173447145612),
        (0.1, 2.045, 1.9048279036989506, 2.222209481487325),
        (0.1, 4.3, 3.7855592292155755, 5.150234339150335),
        (0.4, 0.7, 0.5863051625164165, 0.8619280286911354),
        (0.4, 1.96, 1.5506404520146246, 3.1933759926096656),
        (0.4, 2.045, 1.6086370921110442, 3.468350048695452),
        (0.4, 4.3, 2.9349722565169776, 14.304092115953361),
        (0.9, 0.7, 0.4781364066300196, 1.2763314024077603),
        (0.9, 1.96, 1.267208039156429, 6.550438878075352),
        (0.9, 2.045, 1.3114050587790305, 6.639219053348861),
        (0.9, 4.3, 2.2640545893140356, 8.143501251138806),
    ];

    #[test]
    fn reaches_further_to_the_long_tail() {
        assert_eq!(reach(2.0, 0.0), (2.0, 2.0));
        let (below, above) = reach(2.0, 0.2);
        assert!(below < 2.0 && above > 2.0);
        assert_eq!(reach(2.0, -0.2), (above, below));
        // However skewed, the mean is inside.
        let (below, above) = reach(1e-9, 0.99);
        assert!(below >= 0.0 && above >= 0.0);
    }
}
