use super::*;

#[test]
fn the_word_encodes_each_value() {
    let power = Power { percent: Some(0), charging: Some(false), thermal: ThermalState::CRITICAL };
    assert_eq!(power.word(), 4 << 16 | 1 << 8 | 1);
    assert_eq!(Power { percent: Some(255), charging: Some(true), ..Power::default() }.word(), 2 << 8 | 101);
    assert_eq!(Power::default().word(), 0);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod sysfs {
    use super::*;

    fn device(root: &Path, name: &str, files: &[(&str, &str)]) {
        let directory = root.join(name);
        std::fs::create_dir_all(&directory).unwrap();
        for (file, text) in files {
            std::fs::write(directory.join(file), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn only_the_machines_batteries_and_trip_points_count() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert_eq!(power::read_below(root), Power::default(), "values without batteries and zones");
        device(root, "power_supply/AC", &[("type", "Mains"), ("online", "1")]);
        device(root, "power_supply/mouse", &[("type", "Battery"), ("scope", "Device"), ("capacity", "3")]);
        assert_eq!(power::read_below(root), Power::default(), "a mouse's battery counts");
        device(root, "power_supply/BAT0", &[("type", "Battery"), ("capacity", "80"), ("status", "Full")]);
        device(root, "power_supply/BAT1", &[("type", "Battery"), ("capacity", "41"), ("status", "Discharging")]);
        device(root, "power_supply/BAT2", &[("type", "Battery"), ("capacity", "garbage")]);
        device(
            root,
            "thermal/thermal_zone0",
            &[
                ("temp", "71000"),
                ("trip_point_0_type", "critical"),
                ("trip_point_0_temp", "105000"),
                ("trip_point_1_type", "passive"),
                ("trip_point_1_temp", "70000"),
                ("trip_point_2_type", "hot"),
                ("trip_point_2_temp", "0"),
            ],
        );
        device(root, "thermal/thermal_zone1", &[("temp", "20000")]);
        let expected = Power { percent: Some(60), charging: Some(false), thermal: ThermalState::FAIR };
        assert_eq!(power::read_below(root), expected);
        device(root, "thermal/thermal_zone0", &[("temp", "105000")]);
        device(root, "power_supply/BAT1", &[("status", "Charging")]);
        let expected = Power { charging: Some(true), thermal: ThermalState::CRITICAL, ..expected };
        assert_eq!(power::read_below(root), expected);
    }
}
