import js from "@eslint/js";
import globals from "globals";

const OURS = { dash_clientside: "writable", React: "readonly", dash_ag_grid: "readonly" };

export default [
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2022, sourceType: "script", globals: { ...globals.browser, ...OURS } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...js.configs.recommended.rules,
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", caughtErrors: "none" }],
      eqeqeq: ["error", "always", { null: "ignore" }],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-implicit-globals": "error",
      "no-new-func": "error",
      "no-script-url": "error",
      "no-shadow": "error",
      "no-unused-expressions": ["error", { allowShortCircuit: true }],
      "no-use-before-define": ["error", { functions: false, variables: false }],
      "no-restricted-properties": ["error", ...["innerHTML", "outerHTML", "insertAdjacentHTML", "write"].map((property) => ({ property, message: "it interprets HTML: use textContent" }))],
    },
  },
];
