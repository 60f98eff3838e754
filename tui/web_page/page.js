document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("again").addEventListener("click", () => window.location.reload());
  // The terminal takes its font as it is when it opens: have it there by then.
  document.fonts.load("14px 'Roboto Mono'");
});
