import eslint from "@eslint/js";
import node from "eslint-plugin-n";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["build/", "dist/"] },
  eslint.configs.recommended,
  {
    files: ["**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // These messages are about numbers.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    // Checks for the oldest Node that package.json names. It is the first 20 with zlib.crc32, which is still experimental
    // there.
    files: ["src/**/*.ts"],
    plugins: { n: node },
    rules: {
      "n/no-unsupported-features/node-builtins": ["error", { ignores: ["zlib.crc32"] }],
      "n/no-unsupported-features/es-builtins": "error",
    },
  },
  {
    files: ["test/**/*.ts"],
    rules: {
      // node:test awaits what `test` returns.
      "@typescript-eslint/no-floating-promises": [
        "error",
        { allowForKnownSafeCalls: [{ from: "package", package: "node:test", name: ["test", "suite"] }] },
      ],
    },
  },
);
