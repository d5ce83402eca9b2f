// Asks for the curves every two seconds and puts them in place.
'use strict';
const now = document.getElementById('now');
const say = document.getElementById('say');
let last = '';
async function look() {
  let wait = 2000;
  try {
    const answer = await fetch('/curves', { cache: 'no-store' });
    if (!answer.ok) throw new Error(answer.status);
    const html = await answer.text();
    // A page that is being read under the pointer is left alone where nothing is new.
    if (html !== last) now.innerHTML = last = html;
    say.textContent = '';
  } catch (error) {
    say.textContent = 'No answer: the run has ended, or was stopped. These are its last curves.';
    wait = 5000;
  }
  setTimeout(look, wait);
}
setTimeout(look, 1000);
