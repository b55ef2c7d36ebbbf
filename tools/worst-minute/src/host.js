// Installs Coroner by an addon, and does what the words on the command line say.
const [, , install, crash, errors, ...words] = process.argv;
process.dlopen({ exports: {} }, install);
if (words.includes("traps")) {
    // (module (memory 1) (func (export "f") (result i32) (i32.load (i32.const -1))))
    const code = Uint8Array.from([
        0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 1, 5, 1, 0x60, 0, 1, 0x7f, 3, 2, 1, 0, 5, 3, 1, 0, 1, 7, 5, 1, 1, 0x66, 0, 0,
        0x0a, 9, 1, 7, 0, 0x41, 0x7f, 0x28, 2, 0, 0x0b,
    ]);
    const { f } = new WebAssembly.Instance(new WebAssembly.Module(code)).exports;
    for (let n = 0; n < 20; n += 1) {
        try {
            f();
            process.exit(5);
        } catch (error) {
            if (!(error instanceof WebAssembly.RuntimeError)) throw error;
        }
    }
}
if (words.includes("errors")) process.dlopen({ exports: {} }, errors);
if (words.includes("crash")) process.dlopen({ exports: {} }, crash);
