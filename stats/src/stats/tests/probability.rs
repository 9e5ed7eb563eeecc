use super::*;

/// scipy.stats.beta.ppf, from `oracle.py`.
#[test]
fn quantile_matches_scipy() {
    for (a, b, p, expected) in PINNED {
        let got = quantile(a, b, p, 1.0 - p);
        let error = (got / expected - 1.0).abs();
        assert!(
            error < 1e-13,
            "Beta({a}, {b}) at {p}: {got} vs {expected}, {error:e}"
        );
    }
}

const PINNED: [(f64, f64, f64, f64); 33] = [
    (0.5, 0.5, 0.005, 6.168375916970068e-05),
    (0.5, 0.5, 0.5, 0.4999999999999999),
    (0.5, 0.5, 0.975, 0.9984586668665639),
    (0.5, 10.5, 0.005, 1.915059649943142e-06),
    (0.5, 10.5, 0.5, 0.021940166768717413),
    (0.5, 10.5, 0.975, 0.21719626750921053),
    (1.5, 100.5, 0.005, 0.0003558778409801837),
    (1.5, 100.5, 0.5, 0.011673227613592681),
    (1.5, 100.5, 0.975, 0.04533496210032598),
    (2.5, 9.5, 0.005, 0.01992818134722055),
    (2.5, 9.5, 0.5, 0.19183314322370001),
    (2.5, 9.5, 0.975, 0.467243791022445),
    (50.5, 50.5, 0.005, 0.3736232360408633),
    (50.5, 50.5, 0.5, 0.5),
    (50.5, 50.5, 0.975, 0.596826049103582),
    (999.5, 1.5, 0.005, 0.9935998839526161),
    (999.5, 1.5, 0.5, 0.9988174169493913),
    (999.5, 1.5, 0.975, 0.999892081195319),
    (1234.5, 8766.5, 0.005, 0.11510783804290163),
    (1234.5, 8766.5, 0.5, 0.12341255436446447),
    (1234.5, 8766.5, 0.975, 0.129954986657764),
    (9.5, 1000000.0, 0.005, 3.421965324444145e-06),
    (9.5, 1000000.0, 0.5, 9.168745447891846e-06),
    (9.5, 1000000.0, 0.975, 1.642595871258647e-05),
    (900000.0, 100000.5, 0.005, 0.8992252983669873),
    (900000.0, 100000.5, 0.5, 0.8999998166664527),
    (900000.0, 100000.5, 0.975, 0.9005867817192514),
    (3000000.5, 7000000.5, 0.005, 0.2996268220676404),
    (3000000.5, 7000000.5, 0.5, 0.3000000066666669),
    (3000000.5, 7000000.5, 0.975, 0.30028408362033127),
    (0.5, 10000000.5, 0.005, 1.9635210619358405e-12),
    (0.5, 10000000.5, 0.5, 2.2746820328599193e-08),
    (0.5, 10000000.5, 0.975, 2.5119427153660024e-07),
];

#[test]
fn quantile_inverts_the_tails() {
    for (a, b) in [(0.5, 0.5), (2.5, 1e7), (3e6, 5e6), (1e9, 2e9)] {
        for p in [1e-6, 0.025, 0.5, 0.9] {
            let (lower, upper) = tails(a, b, quantile(a, b, p, 1.0 - p));
            assert!(
                (lower / p - 1.0).abs() < 1e-9,
                "Beta({a}, {b}) at {p}: {lower}"
            );
            assert!((lower + upper - 1.0).abs() < 1e-15);
        }
    }
}

mod student {
    use super::*;

    fn at(level: f64) -> Confidence {
        Confidence::new(level).unwrap()
    }

    /// scipy.stats.t.ppf((1 + level) / 2, degrees), from `oracle.py`.
    #[test]
    fn student_matches_scipy() {
        for (degrees, level, expected) in STUDENT {
            let got = student_two_sided(at(level), degrees);
            let error = (got / expected - 1.0).abs();
            assert!(
                error < 1e-12,
                "t({degrees}) at {level}: {got} vs {expected}, {error:e}"
            );
        }
    }

    /// scipy.stats.norm.ppf((1 + level) / 2), from `oracle.py`.
    #[test]
    fn normal_matches_scipy() {
        for (level, expected) in NORMAL {
            let got = normal_two_sided(at(level));
            let error = (got / expected - 1.0).abs();
            assert!(
                error < 1e-12,
                "normal at {level}: {got} vs {expected}, {error:e}"
            );
        }
    }

    /// 2 scipy.stats.t.sf(t, degrees), from `oracle.py`.
    #[test]
    fn what_is_outside_matches_scipy() {
        for (t, degrees, expected) in STUDENT_OUTSIDE {
            let got = student_outside(t, degrees);
            // scipy's own are off by 6e-10 at 1 degree, and 0 below the smallest number.
            let error = (got - expected).abs() / expected.max(1e-300);
            assert!(error < 1e-9, "{t}, {degrees}: {got} vs {expected}");
        }
        for degrees in [0.3, 4.0, 1e5] {
            let t = student_two_sided(at(0.95), degrees);
            assert!((student_outside(t, degrees) / 0.05 - 1.0).abs() < 1e-12);
        }
        assert_eq!(student_outside(f64::INFINITY, 3.0), 0.0);
    }

    const STUDENT_OUTSIDE: [(f64, f64, f64); 15] = [
        (1e-09, 2.5, 0.9999999992763825),
        (1e-09, 29.0, 0.9999999992089629),
        (1e-09, 10000.0, 0.9999999992021353),
        (0.5, 2.5, 0.6576979198697148),
        (0.5, 29.0, 0.6208480841937812),
        (0.5, 10000.0, 0.6170860793232337),
        (2.0, 2.5, 0.1573914957579659),
        (2.0, 29.0, 0.05494363718296717),
        (2.0, 10000.0, 0.04552726066143543),
        (7.0, 2.5, 0.010572369527591413),
        (7.0, 29.0, 1.07002715302214e-07),
        (7.0, 10000.0, 2.7240315606798312e-12),
        (40.0, 2.5, 0.0001419563429049338),
        (40.0, 29.0, 6.346877329729342e-27),
        (40.0, 10000.0, 0.0),
    ];

    const STUDENT: [(f64, f64, f64); 21] = [
        (1.0, 0.5, 1.0000000000000002),
        (1.0, 0.95, 12.706204736174694),
        (1.0, 0.999, 636.6192487687897),
        (2.0, 0.5, 0.8164965809277261),
        (2.0, 0.95, 4.302652729749462),
        (2.0, 0.999, 31.599054576445365),
        (5.0, 0.5, 0.7266868438004226),
        (5.0, 0.95, 2.5705818356363146),
        (5.0, 0.999, 6.868826625881276),
        (30.0, 0.5, 0.6827556933212927),
        (30.0, 0.95, 2.0422724563012378),
        (30.0, 0.999, 3.6459586350420627),
        (999.0, 0.5, 0.6747354103467192),
        (999.0, 0.95, 1.9623414611334493),
        (999.0, 0.999, 3.3002924403987666),
        (10000.0, 0.5, 0.6745142844835927),
        (10000.0, 0.95, 1.960201239890626),
        (10000.0, 0.999, 3.2914999659416355),
        (10000000.0, 0.5, 0.6744897747295749),
        (10000000.0, 0.95, 1.959964221767205),
        (10000000.0, 0.999, 3.2905277044652532),
    ];
    const NORMAL: [(f64, f64); 6] = [
        (0.01, 0.012533469508069276),
        (0.5, 0.6744897501960817),
        (0.9, 1.6448536269514722),
        (0.95, 1.959963984540054),
        (0.99, 2.5758293035489004),
        (0.999, 3.2905267314919255),
    ];

    #[test]
    fn student_tends_to_normal_from_above() {
        for level in [0.5, 0.9, 0.95, 0.999] {
            let normal = normal_two_sided(at(level));
            let ts = [1.0, 3.0, 1e2, 1e4, 1e6, 1e9].map(|d| student_two_sided(at(level), d));
            assert!(ts.is_sorted_by(|a, b| a > b) && ts[5] > normal, "{ts:?}");
            assert!(ts[5] / normal - 1.0 < 1e-8);
        }
    }

    #[test]
    fn extreme_levels_stay_finite() {
        for level in [f64::MIN_POSITIVE, 1e-9, 1.0 - 1e-9, 1.0 - f64::EPSILON] {
            let normal = normal_two_sided(at(level));
            assert!(
                normal.is_finite() && normal >= 0.0,
                "normal at {level}: {normal}"
            );
            for degrees in [1.0, 2.0, 1e3, 1e7] {
                let t = student_two_sided(at(level), degrees);
                assert!(t.is_finite() && t >= 0.0, "t({degrees}) at {level}: {t}");
            }
        }
    }
}
