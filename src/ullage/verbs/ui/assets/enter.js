// From the address with the token to the page, whose address may be shared; its state stays.
location.replace(`/${location.hash}`);
